"""Models on several GPUs: tensor parallel inference, and training with DDP and FSDP2."""
