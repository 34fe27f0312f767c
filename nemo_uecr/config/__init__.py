"""Configuration: one frozen schema, YAML inheritance, overrides, and the origin of every value."""
