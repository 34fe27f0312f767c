"""Problems: sources and their rows, prepared folders, screening, benchmarks."""
