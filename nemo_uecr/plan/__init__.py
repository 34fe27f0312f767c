"""Layout, memory and time of a run by arithmetic, before anything of it is loaded."""
