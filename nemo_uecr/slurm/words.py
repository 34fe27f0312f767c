"""The command that a job runs: the user's configuration, and what only Slurm knows about its resources."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from nemo_uecr.config.load import Layer, backend_of, flattened, overlay, override_layer
from nemo_uecr.config.nemo_schema import NemoConfig
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
    given = _given(overrides)
    if given.get(NODES, nodes) != nodes:
        raise ConfigError(
            f"{NODES}={given[NODES]}: the job has {nodes} nodes; ask Slurm: sbatch --nodes={given[NODES]}"
        )
    asked = given.get(GPUS, gpus)
    if not (isinstance(asked, int) and 1 <= asked <= gpus):
        raise ConfigError(f"{GPUS}={asked}: each node of the job has {gpus} GPUs; give a number from 1 to {gpus}")
    return [f"{NODES}={nodes}"] + ([] if GPUS in given else [f"{GPUS}={gpus}"])


def _given(overrides: Sequence[str]) -> dict[str, object]:
    """What the overrides set, by dotted key, however they spell it."""
    layers = [override_layer(text, NemoConfig) for text in overrides]
    return flattened(reduce(overlay, layers, Layer({}, {})).values)


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
