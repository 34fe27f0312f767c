"""Verifies a finished conversion again, from what conversion.json recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_uecr.checkpoint.bridge import Bridge
from nemo_uecr.checkpoint.hf_writer import names_folder
from nemo_uecr.checkpoint.on_cpu import megatron_on_cpu
from nemo_uecr.checkpoint.qwen3 import hf_shapes, read_qwen3
from nemo_uecr.checkpoint.record import read_record
from nemo_uecr.checkpoint.sequences import Scores, Sequences, huggingface_scores, megatron_scores
from nemo_uecr.checkpoint.source import ASSETS, MEGATRON, newest_iteration
from nemo_uecr.checkpoint.verification import Agreement, compare
from nemo_uecr.errors import CheckpointError
from nemo_uecr.files import file_sha256


def check(out: Path, tolerance: float) -> Agreement:
    """Score the fixed sequences again and compare with the other model's recorded log-probabilities.

    Args:
        out: a folder that `convert` made.
        tolerance: in nats.

    Returns:
        How far the model in the folder is from the one that it was made from.

    Raises:
        CheckpointError: it is another model, or a file changed since the conversion.
    """
    record = read_record(out)
    found: dict[str, Any] = record["verification"]
    sequences: Sequences = found["sequences"]
    if record["direction"].endswith(MEGATRON):
        agreement = compare(sequences, _megatron(out, sequences), found["huggingface"], tolerance, "Hugging Face")
    else:
        now = huggingface_scores(out, sequences)
        agreement = compare(sequences, found["megatron"], now, tolerance, "Hugging Face")
    for name, expected in record["sha256"].items():
        if not (out / name).is_file() or file_sha256(out / name) != expected:
            raise CheckpointError(
                f"{out / name}: changed since the conversion, and the model is the same within rounding"
            )
    return agreement


def _megatron(out: Path, sequences: Sequences) -> Scores:
    model = read_qwen3(out / ASSETS)
    with megatron_on_cpu(), names_folder(out / ASSETS / "config.json", hf_shapes(model)) as names:
        return megatron_scores(Bridge(names, model).from_megatron(newest_iteration(out)), sequences)
