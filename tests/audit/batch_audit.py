"""The audit of a run's batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_uecr.audit.runs import batch_audit
from nemo_uecr.config.load import load_config


def audited(folder: Path) -> dict[str, Any]:
    return batch_audit(folder, Path(load_config(folder / "config.yaml", ()).config.data.train)).numbers


def faults(folder: Path) -> list[tuple[int, str]]:
    return [(each["step"], each["fault"]) for each in audited(folder)["faults"]]
