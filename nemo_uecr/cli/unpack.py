"""Unpack an archive that `nemo-uecr pack` wrote into a new folder.

Every file is compared with its sha256. An archive with links, or with a name that leads outside the folder, is refused
as a whole.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("archive", type=Path, metavar="ARCHIVE", help="file that `pack` wrote")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to make")


def run(args: argparse.Namespace) -> int:
    """Unpack."""
    from nemo_uecr.data.archive import unpack

    sys.stdout.write(f"{unpack(args.archive, args.folder)} files: {args.folder}\n")
    return 0
