"""Converts Megatron checkpoints to Hugging Face, and verifies that the result is the same model."""
