"""Short runs with every check on, before a long one.

The tolerances are printed first. Then one run a step count, each in a new folder beside the configured one, with
every batch saved; a run whose identities do not hold stops with an error and leaves the batch behind. After
each run the worst residual of every identity is printed, and its batches are computed again with rho = 0 and
with alpha = rho = 0, which must give PUU and GRPO bit for bit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from nemo_uecr.cli.configuration import (
    add_config_arguments,
    load_and_report,
    objective_of,
    train_loaded,
)
from nemo_uecr.errors import ConfigError

if TYPE_CHECKING:
    from nemo_uecr.config.schema import Config

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_config_arguments(parser)
    parser.add_argument(
        "--steps", required=True, metavar="1,5,10", help="number of steps of each run, separated by commas"
    )


def run(args: argparse.Namespace) -> int:
    """Run each step count in turn; the first failure ends the command with its error."""
    from nemo_uecr.cli.smoke_checks import check_reductions, worst_residuals
    from nemo_uecr.config.load import load_config

    counts = _step_counts(args.steps)
    config = load_and_report(args.config, args.overrides).config
    _print_conventions(config)
    root = os.path.join(f"{config.run.folder}-smoke", time.strftime("%Y%m%d-%H%M%S"))
    for steps in counts:
        target = os.path.join(root, f"steps-{steps:03d}")
        folder = train_loaded(load_config(args.config, [*args.overrides, *_short_run(steps, target)]), resume=False)
        for name, residual in worst_residuals(folder).items():
            sys.stdout.write(f"smoke {steps}: {name} at most {residual:.3g}\n")
        reductions = check_reductions(folder)
        compared = f"{reductions} reductions bit for bit" if reductions else "no teacher scores to reduce"
        sys.stdout.write(f"smoke {steps}: passed, {compared}, {folder}\n")
        sys.stdout.flush()
    return 0


def _step_counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise ConfigError(f"--steps: got {text!r}, expected whole numbers >= 1, for example 1,5,10")
    counts = [int(part) for part in parts]
    if len(set(counts)) < len(counts):
        raise ConfigError(f"--steps: got {text!r}, expected each count once, because each run has a folder of its own")
    return counts


def _short_run(steps: int, folder: str) -> list[str]:
    """Overrides of a short run: no evaluation, every batch saved."""
    return [
        f"train.steps={steps}",
        f"run.folder={folder}",
        "evaluation.at_start=false",
        "evaluation.benchmarks={}",
        "checkpoint.keep_best=false",
        "telemetry.save_batch_every=1",
    ]


def _print_conventions(config: Config) -> None:
    sys.stdout.write(f"objective: {objective_of(config)}\n")
    for name, value in config.tolerances.model_dump().items():
        sys.stdout.write(f"tolerance {name}: {value:g}\n")
    sys.stdout.flush()
