"""The command `nemo-uecr`: one module a command, loaded only when that command runs."""
