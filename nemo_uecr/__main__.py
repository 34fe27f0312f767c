"""`python -m nemo_uecr` is the command `nemo-uecr`."""

from __future__ import annotations

import sys

from nemo_uecr.cli.main import entry_point

if __name__ == "__main__":
    sys.exit(entry_point())
