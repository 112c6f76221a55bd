"""Checkpoints that a Hugging Face Trainer writes: a half-written one does not stop a restart."""
