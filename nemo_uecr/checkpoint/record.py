"""conversion.json: what was converted from what, with which versions, and how far the two models are apart."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nemo_uecr
from nemo_uecr.checkpoint.qwen3 import Qwen3, read_json
from nemo_uecr.checkpoint.sequences import Scores, Sequences
from nemo_uecr.checkpoint.verification import Agreement
from nemo_uecr.checkpoint.work_folder import WorkFolder
from nemo_uecr.data.reproducible import installed
from nemo_uecr.errors import CheckpointError

NAME = "conversion.json"
FORMAT = "nemo_uecr.conversion/1"
PACKAGES = ("torch", "transformers", "safetensors", "megatron-core", "megatron-bridge")


@dataclass(frozen=True)
class Verified:
    """The evidence.

    Attributes:
        sequences: the fixed sequences.
        megatron: their log-probabilities under Megatron's model, in nats.
        huggingface: the same under the Hugging Face model.
        tolerance: largest difference allowed.
        agreement: what was found.
    """

    sequences: Sequences
    megatron: Scores
    huggingface: Scores
    tolerance: float
    agreement: Agreement


def versions() -> dict[str, str]:
    """Versions of what a conversion runs on."""
    found = {package: installed(package) or "not installed as a package" for package in PACKAGES}
    return {"nemo_uecr": nemo_uecr.__version__} | found


def write_record(work: WorkFolder, making: dict[str, Any], model: Qwen3, verified: Verified) -> None:
    """Write the file into the folder."""
    content = {
        "format": FORMAT, **making, "architecture": asdict(model), "sha256": work.hashes(),
        "verification": asdict(verified),
    }  # fmt: skip
    (work.path / NAME).write_text(json.dumps(content, indent=1), encoding="utf-8")
    work.complete(NAME)


def read_record(folder: Path) -> dict[str, Any]:
    """The file of a finished conversion.

    Raises:
        CheckpointError: the folder is no finished conversion.
    """
    if not (folder / NAME).is_file():
        raise CheckpointError(f"{folder}: no {NAME}; expected a folder that nemo-uecr convert made")
    found = read_json(folder / NAME)
    if found.get("format") != FORMAT:
        raise CheckpointError(f"{folder / NAME}: format {found.get('format')!r:.60}; expected {FORMAT!r}")
    evidence = found.get("verification")
    whole = (
        isinstance(found.get("direction"), str)
        and isinstance(found.get("sha256"), dict)
        and isinstance(evidence, dict)
        and all(_rows(evidence.get(name)) for name in ("sequences", "megatron", "huggingface"))
    )
    if not whole:
        raise CheckpointError(f"{folder / NAME}: damaged; expected direction, sha256 and verification. Convert again")
    return found


def _rows(value: object) -> bool:
    """Lists of numbers, at least one."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(row, list) and all(isinstance(one, (int, float)) for one in row) for row in value)
    )
