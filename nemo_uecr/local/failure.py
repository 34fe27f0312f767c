"""What a failed step leaves behind: a batch that `nemo-uecr replay` can read, and what went wrong."""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path

from nemo_uecr.config.schema import MethodConfig
from nemo_uecr.core.records import Settings
from nemo_uecr.data.atomic import replace_file
from nemo_uecr.errors import UecrError
from nemo_uecr.local.batch import StepBatch

log = logging.getLogger(__name__)


def leave_failure(folder: Path, batch: StepBatch, method: MethodConfig, settings: Settings, error: UecrError) -> None:
    """Save the step's batch and the error under ``failure/``, and say how to look at it."""
    target = folder / "failure"
    batch.save(target, "batch", method, settings, None)
    assignments = [f"{name}={value}" for name, value in vars(settings).items() if value is not None]
    words = ["nemo-uecr", "replay", str(target / "batch.safetensors"), "--method", method.name]
    command = shlex.join([*words, "--set", *assignments, "--out", str(target / "advantages.safetensors")])
    sample = next((name for name in batch.sample_ids if f"({name})" in str(error)), None)
    record = {
        "step": batch.step,
        "error": str(error),
        "kind": type(error).__name__,
        "sample": sample,
        "command": command,
    }
    replace_file(target / "failure.json", json.dumps(record, indent=1).encode())
    log.error("the step's batch is kept; look at it with: %s", command)
