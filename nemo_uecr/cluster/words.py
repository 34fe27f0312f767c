"""The command that a job runs: the user's configuration, and what only Slurm knows about its resources."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_uecr.config.nemo_load import backend_of
from nemo_uecr.errors import ConfigError

__all__ = ["command_words", "resource_overrides"]

NODES, GPUS = "cluster.nodes", "cluster.gpus_per_node"


def resource_overrides(config: str, overrides: Sequence[str], *, nodes: int, gpus: int) -> list[str]:
    """Overrides that give the run the resources of its job; none for the local back end, which has one node.

    Raises:
        ConfigError: the overrides ask for other resources than the job has.
    """
    if backend_of(config, overrides) != "nemo_rl":
        if nodes != 1:
            raise ConfigError(f"{config}: backend local runs on one node, the job has {nodes}; sbatch --nodes=1")
        return []
    given = dict(text.lstrip("+").split("=", 1) for text in overrides if "=" in text)
    if given.get(NODES, str(nodes)) != str(nodes):
        raise ConfigError(
            f"{NODES}={given[NODES]}: the job has {nodes} nodes; ask Slurm: sbatch --nodes={given[NODES]}"
        )
    if GPUS in given and not (given[GPUS].isdecimal() and 1 <= int(given[GPUS]) <= gpus):
        raise ConfigError(f"{GPUS}={given[GPUS]}: each node of the job has {gpus} GPUs; give a number from 1 to {gpus}")
    return [f"{NODES}={nodes}"] + ([] if GPUS in given else [f"{GPUS}={gpus}"])


def command_words(config: str, overrides: Sequence[str], *, smoke: bool, nodes: int, gpus: int) -> list[str]:
    """What follows `nemo-uecr` in the driver's command line.

    Every attempt of a job runs the same words: they continue what the run folder holds.

    Raises:
        ConfigError: the overrides ask for other resources than the job has.
    """
    if smoke:
        return ["cluster", "smoke", config, *overrides]
    resources = resource_overrides(config, overrides, nodes=nodes, gpus=gpus)
    return ["train", config, *overrides, *resources, "--resume"]
