"""Converts checkpoints between Megatron and Hugging Face, and verifies that the result is the same model."""
