"""Answer extraction and equivalence; nothing heavy loads at import."""
