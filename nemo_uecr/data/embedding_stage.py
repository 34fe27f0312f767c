"""The embedding stage: the nearest benchmark problem of every kept row, resumable shard by shard."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.data.embedding import Encoder, load_encoder
from nemo_uecr.data.manifest import (
    KEPT,
    REVIEW,
    TARGETS,
    Manifest,
    check_intact,
    jsonl,
    read_manifest,
)
from nemo_uecr.data.review import has_verdicts
from nemo_uecr.data.revise import hold
from nemo_uecr.errors import DataError
from nemo_uecr.files import file_sha256, replace_file

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

PROGRESS = ".embedding"
SHARD_ROWS = 128


@dataclass(frozen=True)
class Screened:
    """The result of the stage.

    Attributes:
        manifest: the folder's new manifest.
        rows: rows compared, those of an earlier attempt included.
        embedded: rows embedded by this call.
        seconds: time this call spent embedding them.
        held: rows taken aside.
    """

    manifest: Manifest
    rows: int
    embedded: int
    seconds: float
    held: int


def screen_by_embedding(folder: Path, *, model: str, hold_at: float) -> Screened:
    """Hold every kept row whose nearest benchmark problem has a cosine of at least ``hold_at``.

    Raises:
        DataError: If the folder was altered, was screened against no benchmark, or has verdicts to apply.
    """
    check_intact(folder)
    if has_verdicts(folder / REVIEW):
        raise DataError(f"{folder / REVIEW} has verdicts that are not applied yet; run `nemo-uecr data apply` first")
    targets = list(jsonl(folder / TARGETS))
    if not targets:
        raise DataError(f"{folder}: prepared without --screen; there is no benchmark to compare with")
    encoder = load_encoder(model)
    vectors_QH = encoder.encode([target["question"] for target in targets])
    manifest = read_manifest(folder)
    asked = {"model": model, "hold_at": hold_at, "targets": hashlib.sha256(vectors_QH.numpy().tobytes()).hexdigest()}
    before = _last_screen(manifest)
    if before is not None and asked.items() <= before.items():
        return Screened(manifest, before["rows"], 0, 0.0, before["held"])
    progress = folder / PROGRESS / _fingerprint(folder, model, vectors_QH)
    nearest, embedded, seconds = _nearest(folder, progress, encoder, vectors_QH)
    findings = {
        row: [
            {
                "method": "embedding",
                "score": round(score, 4),
                "benchmark": targets[target]["benchmark"],
                "problem": targets[target]["problem"],
            }
        ]
        for row, score, target in nearest
        if score >= hold_at
    }
    record = {"screen": asked | {"rows": len(nearest), "held": len(findings)}}
    manifest = hold(folder, findings, record)
    return Screened(manifest, len(nearest), embedded, seconds, len(findings))


def _last_screen(manifest: Manifest) -> dict[str, Any] | None:
    """What the folder's last stage says, if it was this one; a call killed at its very end has done its work."""
    last = manifest["stages"][-1]
    return last.get("screen") if isinstance(last, dict) else None


def _nearest(
    folder: Path, progress: Path, encoder: Encoder, vectors_QH: Tensor
) -> tuple[list[tuple[int, float, int]], int, float]:
    """Row, cosine and target of every kept row; what an earlier call finished is read back."""
    rows = [(row["row"], row["question"]) for row in jsonl(folder / KEPT)]
    nearest: list[tuple[int, float, int]] = []
    embedded, seconds = 0, 0.0
    for start in range(0, len(rows), SHARD_ROWS):
        shard = rows[start : start + SHARD_ROWS]
        file = progress / f"shard-{start // SHARD_ROWS:05d}.json"
        if not file.is_file():
            began = time.perf_counter()
            cosine_BQ = encoder.encode([question for _, question in shard]) @ vectors_QH.T
            best = cosine_BQ.max(dim=1)
            numbers = [number for number, _ in shard]
            result = list(zip(numbers, best.values.tolist(), best.indices.tolist(), strict=True))
            replace_file(file, json.dumps(result).encode())
            embedded += len(shard)
            seconds += time.perf_counter() - began
            log.info("%d of %d rows, %.0f rows a second", start + len(shard), len(rows), embedded / seconds)
        nearest += [(row, score, target) for row, score, target in json.loads(file.read_bytes())]
    return nearest, embedded, seconds


def _fingerprint(folder: Path, model: str, vectors_QH: Tensor) -> str:
    """Progress belongs to these rows and this model: the targets' vectors tell the weights apart."""
    digest = hashlib.sha256(vectors_QH.numpy().tobytes())
    digest.update(f"{model}:{file_sha256(folder / KEPT)}:{SHARD_ROWS}".encode())
    return digest.hexdigest()[:16]
