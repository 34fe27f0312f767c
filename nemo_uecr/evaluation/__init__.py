"""avg@k and its intervals."""
