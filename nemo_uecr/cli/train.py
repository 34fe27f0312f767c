"""Train a student from a configuration file.

The run folder holds the resolved configuration, metrics, evaluations, saved batches and checkpoints.
Any value of the configuration can be changed on the command line:

  nemo-uecr train examples/configs/local/demo.yaml method.name=distilled_rl run.folder=runs/distilled
"""

from __future__ import annotations

import argparse
import sys

from nemo_uecr.cli import nemo_rl
from nemo_uecr.cli.configuration import add_config_arguments, load_and_report, telling_how_to_go_on, train_loaded

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_config_arguments(parser)
    parser.add_argument(
        "--resume", action="store_true", help="continue the run in run.folder from its newest checkpoint"
    )


def run(args: argparse.Namespace) -> int:
    """Train."""
    if nemo_rl.is_nemo_rl(args.config, args.overrides):
        folder = nemo_rl.train(args.config, args.overrides, resume=args.resume)
    else:
        loaded = load_and_report(args.config, args.overrides)
        with telling_how_to_go_on(loaded.config.run.folder):
            folder = train_loaded(loaded, resume=args.resume)
    sys.stdout.write(f"run: {folder}\n")
    return 0
