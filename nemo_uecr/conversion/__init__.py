"""Converts checkpoints between Megatron and Hugging Face, and proves that the result is the same model."""
