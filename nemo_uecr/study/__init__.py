"""Grids of training runs: many methods, several students, one set of tables."""
