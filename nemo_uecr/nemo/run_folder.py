"""The run folder of a NeMo-RL run: begun once, continued only when asked to, with the files that say what it is."""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import nemo_uecr
from nemo_uecr.config.load import check_same_configuration, dump_config, load_nemo_config
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.core.records import EPSILON, GAP_CLIP
from nemo_uecr.data.reproducible import installed
from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import replace_file
from nemo_uecr.telemetry.sinks import EVALUATIONS, truncate_records

PACKAGES = ("torch", "transformers", "megatron-core", "megatron-bridge", "transformer-engine", "vllm", "ray")


def check_folder(config: NemoConfig, *, resume: bool) -> None:
    """Refuse a folder that holds a run, unless that run is to be continued under the same configuration.

    NeMo-RL continues from the newest checkpoint that it finds, asked or not.

    Raises:
        RunFolderError: it holds a run that was not asked to be continued.
        CheckpointError: its run has another configuration.
    """
    folder = Path(config.run.folder)
    written = folder / "config.yaml"
    begun = written.exists() or any((folder / "checkpoints").glob("step_*"))
    if begun and not resume:
        raise RunFolderError(f"{folder} already holds a run; add --resume to continue it or choose another run.folder")
    if written.exists():
        check_same_configuration(written, config, load_nemo_config(written, ()).model_dump(mode="json"))
    elif begun:
        raise RunFolderError(
            f"{folder} has checkpoints but no config.yaml to compare this configuration with; choose another run.folder"
        )


@contextlib.contextmanager
def begun_by_a_step(config: NemoConfig, completed_steps: Callable[[], int]) -> Iterator[None]:
    """A block that fails before any step leaves a folder that can be begun again, under another configuration too.

    What the folder held before the block stays: a run that could not be continued is still a run.
    """
    written = Path(config.run.folder) / "config.yaml"
    fresh = not written.exists()
    try:
        yield
    except BaseException:
        if fresh and completed_steps() == 0:
            written.unlink(missing_ok=True)
        raise


def write_run_files(config: NemoConfig, *, origins: Mapping[str, str], objective: str, version: str) -> None:
    """Configuration, origins, tolerances and provenance, before the first step.

    Args:
        config: the run's.
        origins: where each value came from.
        objective: the loss as one equation.
        version: NeMo-RL's.
    """
    folder = Path(config.run.folder)
    provenance = {
        "objective": objective,
        "command": sys.argv,
        "versions": {
            "nemo_uecr": nemo_uecr.__version__,
            "nemo_rl": version,
            "python": platform.python_version(),
            **{package: installed(package) or "not installed in the driver's environment" for package in PACKAGES},
        },
        "platform": platform.platform(),
        "seeds": {"run": config.run.seed, "evaluation": config.evaluation.seed},
        "conventions": {
            "reward": "1 for a correct final answer, 0 otherwise",
            "answer": "content of the last complete \\boxed{...}",
            "group_std": config.method.std,
            "epsilon": EPSILON,
            "gap_clip": GAP_CLIP,
            "loss": "token mean over the optimizer step's batch",
            **config.conventions.model_dump(),
        },
    }
    records = {"tolerances": config.tolerances.model_dump(), "origins": dict(origins), "provenance": provenance}
    for name, record in records.items():
        replace_file(folder / f"{name}.json", json.dumps(record, indent=1).encode())
    replace_file(folder / "config.yaml", dump_config(config).encode())


def drop_later_records(config: NemoConfig, *, completed_steps: int) -> None:
    """Forget evaluations after the checkpoint that the run continues from; they will be made again."""
    truncate_records(Path(config.run.folder) / EVALUATIONS, last_step=completed_steps or -1)
