"""What a failed step leaves behind: a batch that `nemo-uecr replay` can read, and what went wrong."""

from __future__ import annotations

import json
import logging
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
    batch.save(target, "batch", method, settings)
    given = {name: value for name, value in vars(settings).items() if value is not None}
    assignments = " ".join(f"{name}={value}" for name, value in given.items())
    command = (
        f"nemo-uecr replay {target / 'batch.safetensors'} --method {method.name} --set {assignments} "
        f"--out {target / 'advantages.safetensors'}"
    )
    record = {"step": batch.step, "error": str(error), "kind": type(error).__name__, "command": command}
    replace_file(target / "failure.json", json.dumps(record, indent=1).encode())
    log.error("the step's batch is kept; look at it with: %s", command)
