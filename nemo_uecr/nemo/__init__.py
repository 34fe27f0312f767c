"""The NeMo-RL back end: the same methods inside NeMo-RL's own training loop."""
