"""Checks of the machine and of what a configuration names, each with a remedy."""
