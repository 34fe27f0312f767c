"""The same short run of the local back end on every node of the Ray cluster at RAY_ADDRESS; no GPU is needed.

Each node trains in run.folder/NODE; at the end all must have come to the same numbers. It continues what the run
folders hold, and ends early as `train` does.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from nemo_uecr.cli.configuration import add_config_arguments, load_and_report, train_until
from nemo_uecr.cli.extras import require_extra
from nemo_uecr.errors import DependencyError

if TYPE_CHECKING:
    from pathlib import Path

    from nemo_uecr.stopping import StopRequest

__all__ = ["add_arguments", "run", "train_replica"]

#: Machines of one kind agree to the last bit; others round differently.
TOLERANCE = 1e-6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train everywhere and compare."""
    from pathlib import Path

    from nemo_uecr.cluster.replicas import ReplicaError, largest_difference, train_everywhere
    from nemo_uecr.stopping import listening

    folder = Path(load_and_report(args.config, args.overrides).config.run.folder).resolve()
    _connect()
    with listening() as stop:  # after connecting: Ray sets a handler of its own
        folders = train_everywhere(
            partial(train_replica, os.path.abspath(args.config), tuple(args.overrides)), folder, stop
        )
    difference = largest_difference(list(folders.values()))
    names = ", ".join(folders)
    if not difference <= TOLERANCE:
        raise ReplicaError(
            f"nodes {names} disagree: a metric differs by {difference:.3g}, expected {TOLERANCE:g} at most"
        )
    sys.stdout.write(f"smoke: {len(folders)} nodes ({names}) agree, largest difference {difference:.3g}; {folder}\n")
    return 0


def train_replica(config: str, overrides: tuple[str, ...], folder: Path, stop: StopRequest) -> Path:
    """One replica's run; called on its node."""
    loaded = load_and_report(config, [*overrides, f"run.folder={folder}"])
    return train_until(loaded, resume=True, stop=stop)


def _connect() -> None:
    require_extra("ray")
    import ray

    address = os.environ.get("RAY_ADDRESS")
    if not address:
        raise DependencyError("RAY_ADDRESS is not set; start this command through sbatch, see docs/cluster.md")
    ray.init(address=address)
