"""Checks of a Slurm job: its resources against the run's, and what its container would lose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.errors import ConfigError
from nemo_uecr.files import check_mounted
from nemo_uecr.telemetry.sinks import STEPS, read_records


@dataclass(frozen=True)
class Resources:
    """What Slurm gives, and the configuration that was named for it."""

    config: str
    nodes: int
    gpus: int  # of each node


def one_node(given: Resources) -> str:
    """The local back end runs on one node."""
    if given.nodes != 1:
        raise ConfigError(
            f"{given.config}: backend local runs on one node, the job has {given.nodes}; sbatch --nodes=1"
        )
    return "1 node"


def same_gpus(given: Resources, *, nodes: int, gpus: int) -> str:
    """The run uses all nodes of the job, and no more GPUs than each has."""
    if given.gpus == 0:
        raise ConfigError(f"{given.config}: backend nemo_rl needs GPUs, the job has none; sbatch --gpus-per-node=N")
    if nodes != given.nodes or gpus > given.gpus:
        raise ConfigError(
            f"cluster.num_nodes={nodes} with cluster.gpus_per_node={gpus}: the job has {given.nodes} nodes "
            f"of {given.gpus} GPUs; leave both keys to the job, or change the job (sbatch --nodes=N --gpus-per-node=N)"
        )
    return f"{nodes} nodes of {gpus} GPUs"


def mounted(folder: Path, key: str) -> str:
    """A folder that the run writes, named by a key, outlives the job's container."""
    check_mounted(folder, key=f"{key}=")
    return str(folder)


def mounted_conversions(folder: Path) -> str:
    """NeMo-RL's conversions outlive the job's container, and every node sees them."""
    remedy = "set HF_HOME or NRL_MEGATRON_CHECKPOINT_DIR to a shared, mounted folder"
    check_mounted(folder, key="the folder of NeMo-RL's conversions, ", remedy=remedy)
    return str(folder)


def unfinished_smoke(folder: Path, steps: int) -> str:
    """A smoke test of so many steps has not been done in the folder, where each node trains in one below it."""
    done = [len(read_records(path)[0]) >= steps for path in folder.glob(f"*/{STEPS}")]
    if done and all(done):
        raise ConfigError(f"run.folder={folder} holds a finished smoke test; choose another to repeat it")
    return f"{folder}: {sum(done)} of {len(done)} nodes are done"


def can_smoke(config: str, *, smoke: bool) -> str:
    """The smoke test trains the local back end on every node, and no recipe."""
    if smoke:
        raise ConfigError(f"{config} is a recipe of NeMo-RL's; --smoke needs --config examples/configs/local/demo.yaml")
    return "no smoke test"
