"""Measurements against other ways of doing the same, one process a case."""
