"""The demo: chains of two-digit arithmetic, and a small student and teacher made for them on the spot."""
