"""What scripts and checkpoints of Hugging Face Accelerate have under other names."""
