"""Grids of methods on several students, with tables, intervals and figures: `python -m benchmarks.study FILE`."""
