"""What a failed step or evaluation leaves behind: what was drawn until then, and what went wrong."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from nemo_uecr.config.schema import MethodConfig
from nemo_uecr.core.records import Settings
from nemo_uecr.errors import UecrError
from nemo_uecr.evaluation.samples import SAMPLES, Sample, sample_lines
from nemo_uecr.files import replace_file
from nemo_uecr.local.batch import StepBatch

log = logging.getLogger(__name__)

FOLDER = "failure"


def leave_failure(folder: Path, batch: StepBatch, method: MethodConfig, settings: Settings, error: UecrError) -> None:
    """Save the step's batch and the error under ``failure/``, and say how to look at it with `nemo-uecr replay`.

    ``sample`` is the response that the error names, None where it is about no single one (the weights, a mean).
    """
    target = folder / FOLDER
    batch.save(target, "batch", method, settings, None)
    named = {**vars(settings), **{f"parameters.{name}": value for name, value in settings.parameters.items()}}
    del named["parameters"]
    assignments = [f"{name}={value}" for name, value in named.items() if value is not None]
    words = ["nemo-uecr", "replay", str(target / "batch.safetensors"), "--method", method.name]
    command = shlex.join([*words, "--set", *assignments, "--out", str(target / "advantages.safetensors")])
    sample = next((name for name in batch.sample_ids if f"({name})" in str(error)), None)
    _write_record(target, batch.step, error, sample, command)
    log.error("the step's batch is kept; look at it with: %s", command)


def leave_evaluation_failure(
    folder: Path, step: int, drawn: Sequence[Sample], *, sample: str, error: UecrError
) -> None:
    """Save the responses that an evaluation drew and the error under ``failure/``; there is no batch to replay.

    Args:
        folder: run folder.
        step: training step of the evaluation, 0 before training.
        drawn: what was drawn; the response that failed ends with an end token that was not drawn.
        sample: names that response.
        error: what the run stops with.
    """
    target = folder / FOLDER
    replace_file(target / SAMPLES, sample_lines(drawn))
    _write_record(target, step, error, sample, None)
    log.error("the responses of the evaluation are kept in %s", target / SAMPLES)


def _write_record(target: Path, step: int, error: UecrError, sample: str | None, command: str | None) -> None:
    record = {"step": step, "error": str(error), "kind": type(error).__name__, "sample": sample, "command": command}
    replace_file(target / "failure.json", json.dumps(record, indent=1).encode())
