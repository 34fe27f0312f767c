"""Megatron forward to token scores: the part of a worker that knows neither NeMo-RL nor Ray."""
