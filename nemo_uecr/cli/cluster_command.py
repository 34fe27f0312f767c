"""Print the command that a Slurm job with these resources runs; the first step of every `--dry-run`."""

from __future__ import annotations

import argparse
import shlex
import sys

from nemo_uecr.cli.configuration import add_config_arguments

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--nodes", required=True, type=int, help="nodes of the job")
    parser.add_argument("--gpus", required=True, type=int, help="GPUs of each node")
    parser.add_argument("--smoke", action="store_true", help="the same short local run on every node")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print it, quoted for a shell."""
    from nemo_uecr.cluster.words import command_words

    words = command_words(args.config, args.overrides, smoke=args.smoke, nodes=args.nodes, gpus=args.gpus)
    sys.stdout.write(shlex.join(["nemo-uecr", *words]) + "\n")
    return 0
