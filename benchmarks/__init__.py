"""Measurements of speed and memory, beside the package and not in the wheel."""
