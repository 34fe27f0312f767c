"""One process, CPU or one GPU: a real training loop that reads from top to bottom in `trainer`."""
