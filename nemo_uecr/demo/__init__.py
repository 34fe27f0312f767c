"""Grids of small training runs, and the demo: chains of arithmetic, and models made for them."""
