"""The torch.compile backend. Everything that touches a private name of torch stands in here, each
with a version test (versions.py)."""
