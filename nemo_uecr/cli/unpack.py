"""Unpack an archive that `nemo-uecr pack` wrote into a new folder.

Every file is compared with its sha256. An archive with links, with a name that leads outside the folder, or with more
than --max-gib of files, is refused as a whole.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nemo_uecr.cli.ranges import whole_from

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("archive", type=Path, metavar="ARCHIVE", help="file that `pack` wrote")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to make")
    parser.add_argument(
        "--max-gib", type=whole_from(1), default=64, metavar="N", help="most that the files may take, GiB (64)"
    )


def run(args: argparse.Namespace) -> int:
    """Unpack."""
    from nemo_uecr.data.unpacking import unpack

    count = unpack(args.archive, args.folder, max_gib=args.max_gib)
    sys.stdout.write(f"{count} files: {args.folder}\n")
    return 0
