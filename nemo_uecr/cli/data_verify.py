"""Verify a prepared folder against its manifest: every file, every row, every count."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder made by `data prepare`")
    parser.add_argument("--source", type=Path, metavar="FILE", help="also compare this source with the manifest")


def run(args: argparse.Namespace) -> int:
    """Print every fault; exit code 1 when there is one."""
    from nemo_uecr.data.manifest import faults, manifest_as_found, source_faults

    manifest = manifest_as_found(args.folder)
    found = faults(args.folder)
    if args.source is not None:
        found += source_faults(manifest, args.source)
    counts = manifest["counts"]
    for fault in found:
        sys.stdout.write(f"fault: {fault}\n")
    sys.stdout.write(
        f"{args.folder}: {counts['read']} rows read, {counts['kept']} kept, {counts['held']} held, "
        f"{counts['removed']} removed; {len(found)} faults\n"
    )
    if counts["held"]:
        sys.stdout.write(f"{counts['held']} held rows wait for a verdict in {args.folder}/screening/review.csv\n")
    return 1 if found else 0
