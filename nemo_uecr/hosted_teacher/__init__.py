"""A teacher on a server: the client that a run uses, and the plugin that makes vLLM give the entropy."""
