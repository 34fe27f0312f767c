"""Show or check a configuration.

show   the complete configuration as YAML, every value with the file it comes from
check  validate it, see that the problem files are there, and print the objective as one equation
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli import nemo_rl
from nemo_uecr.cli.configuration import add_config_arguments, summary

if TYPE_CHECKING:
    from nemo_uecr.config.schema import Config

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("action", choices=["show", "check"], help="what to do")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the configuration or the result of the check."""
    from nemo_uecr.config.load import load_config
    from nemo_uecr.config.nemo_load import load_nemo
    from nemo_uecr.config.nemo_schema import NemoConfig
    from nemo_uecr.config.show import annotated_yaml

    load = load_nemo if nemo_rl.is_nemo_rl(args.config, args.overrides) else load_config
    loaded = load(args.config, args.overrides)
    if args.action == "show":
        sys.stdout.write(annotated_yaml(loaded.config, loaded.origins))
        sys.stdout.write(summary(loaded.config, loaded.origins, prefix="# "))
        return 0
    found = ""
    if isinstance(loaded.config, NemoConfig):
        found = nemo_rl.check(loaded.config)
    else:
        _check_files(loaded.config)
    sys.stdout.write(summary(loaded.config, loaded.origins, prefix="") + found)
    return 0


def _check_files(config: Config) -> None:
    from nemo_uecr.data.benchmarks import check_benchmark_files
    from nemo_uecr.data.prepared import training_file

    if not config.data.train.startswith("demo:"):
        training_file(Path(config.data.train), "data.train")
    benchmarks = config.evaluation.benchmarks
    check_benchmark_files({name: path for name, path in benchmarks.items() if not path.startswith("demo:")})
