"""Pack a run folder into one archive (.tar.gz), to be unpacked and replayed elsewhere.

Every file goes in with its sha256; the lock, half-written files and links are left out. Equal folders give equal
archives.

  nemo-uecr pack runs/demo demo.tar.gz --without-checkpoints
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nemo_uecr.errors import RunFolderError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("out", type=Path, metavar="OUT", help="archive to write")
    parser.add_argument("--without-checkpoints", action="store_true", help="leave checkpoints/ out")


def run(args: argparse.Namespace) -> int:
    """Pack."""
    from nemo_uecr.data.archive import pack
    from nemo_uecr.files import in_use

    if not (args.run / "config.yaml").is_file():
        raise RunFolderError(f"{args.run} has no config.yaml; expected the run folder that `nemo-uecr train` wrote")
    if in_use(args.run):
        raise RunFolderError(f"{args.run} is in use by a run; wait until it has ended, then pack again")
    files = pack(args.run, args.out, checkpoints=not args.without_checkpoints)
    sys.stdout.write(f"{files} files, {args.out.stat().st_size / 1e6:.1f} MB: {args.out}\n")
    return 0
