"""torch.compile: Dynamo and Inductor, or AOTAutograd alone."""
