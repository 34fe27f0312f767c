"""Metric names, their statistics, and where they are written."""
