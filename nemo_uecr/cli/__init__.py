"""The command `nemo-uecr`; heavy modules are loaded only when a command runs."""
