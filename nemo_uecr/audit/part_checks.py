"""What must hold of a folder of scores before a number is read from it: its plan, its files' hashes, its tensors.

Shape legend: b = responses of one part, N = their tokens in a flat list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nemo_uecr.audit.schema import FORMAT, PARTS, PLAN, RESPONSES, part_numbers, row_path, token_path
from nemo_uecr.errors import DataError, ScoreError
from nemo_uecr.files import file_sha256, read_object

#: Rounding that a log-probability may lie above 0, or an entropy below it, in nats.
TOLERANCE = 1e-4
_REQUIRED = ("teacher", "anchors", "students", "sources", PARTS)


def read_plan(folder: Path) -> dict[str, Any]:
    """What ``scores.json`` says.

    Raises:
        DataError: If it is not there, or is not what ``score`` writes.
    """
    path = folder / PLAN
    if not path.is_file():
        raise DataError(f"{folder} has no {PLAN}; expected a folder that `nemo-uecr score` wrote")
    plan = read_object(path)
    if plan.get("format") != FORMAT:
        raise DataError(f"{path} has format {plan.get('format')!r}; expected {FORMAT!r}")
    for key in _REQUIRED:
        if key not in plan:
            raise DataError(f"{path} has no {key!r}; expected the file as `score` writes it. Score into a new folder")
    for key in _REQUIRED:
        if not isinstance(plan[key], dict):
            raise DataError(f"{path}: {key!r} is a {type(plan[key]).__name__}; expected an object")
    if not isinstance(plan["teacher"].get("name"), str):
        raise DataError(f"{path}: 'teacher' has no name; expected the model that scored. Score into a new folder")
    wanted = plan.get(RESPONSES, 0)  # a writer that writes at once says none
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 0:
        raise DataError(f"{path}: {RESPONSES!r} is {wanted!r}; expected a whole number from 0. Score into a new folder")
    return plan


def check_parts(folder: Path, plan: Mapping[str, Any], *, finished: bool) -> list[int]:
    """Numbers of the complete parts; an interruption leaves at most the tokens of the last one.

    Args:
        folder: the folder of scores.
        plan: what its ``scores.json`` says.
        finished: whether the last part must have its rows too; False for the one who writes them.

    Raises:
        DataError: naming the file that is gone, or whose rows are not those that were written.
    """
    names = set(plan[PARTS])
    numbers = [number for number in range(len(names)) if row_path(folder, number).name in names]
    for number in numbers:
        rows, tokens = row_path(folder, number), token_path(folder, number)
        needed = finished or number != numbers[-1]
        lost = tokens if not tokens.is_file() else rows if needed and not rows.is_file() else None
        if lost is not None:
            last = lost == rows and number == numbers[-1]
            what = "finish with the same `nemo-uecr score` command" if last else "score into a new folder"
            raise DataError(f"{lost} is gone, {PLAN} lists it; restore it, or {what}")
    complete = part_numbers(folder)
    for number in complete:
        check_hash(row_path(folder, number), plan)
    return complete


def check_finished(folder: Path, plan: Mapping[str, Any], got: int) -> None:
    """Refuse scores that an interruption left incomplete: numbers of some of the responses look like those of all.

    Raises:
        DataError: If the plan says another number of responses than there is.
    """
    wanted = plan.get(RESPONSES, got)  # a writer that writes at once says none
    if got != wanted:
        raise DataError(
            f"{folder} holds {got} of {wanted!r} responses: `nemo-uecr score` was interrupted; finish with the same "
            "command"
        )


def check_hash(path: Path, plan: Mapping[str, Any]) -> None:
    """Refuse a file that is not the one that was written.

    Raises:
        DataError: If the file's sha256 is not recorded, or is another one.
    """
    wanted = plan[PARTS].get(path.name)
    if wanted is None:
        raise DataError(f"{path.parent / PLAN} has no sha256 of {path.name}; score into a new folder")
    if path.is_file() and file_sha256(path) != wanted:
        raise DataError(
            f"{path} is not the file that was written: its sha256 differs from the one in {PLAN}; restore it, or score "
            "into a new folder"
        )


def content_sha256(content: bytes) -> str:
    """Digest of a file before it is written."""
    return hashlib.sha256(content).hexdigest()


def check_tensors(tensors: Mapping[str, Tensor], scored_b: np.ndarray, path: Path) -> None:
    """Refuse token tensors that cannot belong to the part's responses.

    Args:
        tensors: ``offsets`` [b + 1], ``teacher_entropy`` and log-probabilities [N] in nats, other tensors [N].
        scored_b: [b] tokens of each response by the parquet file.
        path: the file, for the message.

    Raises:
        DataError: If a tensor's type, offsets or lengths do not fit.
        ScoreError: If a log-probability is positive or an entropy negative, beyond rounding.
    """
    _check_types(tensors, path)
    offsets = tensors["offsets"]
    if offsets.ndim != 1 or not offsets.numel() or int(offsets[0]) != 0 or bool((offsets.diff() < 0).any()):
        raise DataError(f"{path}: offsets do not ascend from 0; score into a new folder")
    if bool((offsets.diff() == 0).any()):
        raise DataError(f"{path}: a response has no token; expected at least one. Score into a new folder")
    if not np.array_equal(offsets.diff().numpy(), scored_b):
        raise DataError(f"{path} does not have the token counts of its parquet file; one of the two was changed")
    total = int(offsets[-1])
    for name, tensor in tensors.items():
        if name != "offsets" and tuple(tensor.shape) != (total,):
            raise DataError(f"{path}: {name} has shape {tuple(tensor.shape)}; expected ({total},), as offsets say")
    for name, tensor in tensors.items():
        if name.endswith("logp") and total:
            high = float(tensor.nan_to_num(nan=0.0).amax())
            if high > TOLERANCE:
                raise ScoreError(f"{path}: {name} rises to {high:.6g} nats; expected log-probabilities <= 0")
    low = float(tensors["teacher_entropy"].nan_to_num(nan=0.0).amin()) if total else 0.0
    if low < -TOLERANCE:
        raise ScoreError(f"{path}: teacher_entropy falls to {low:.6g} nats; expected +H >= 0")


def _check_types(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse what torch could not compute with, or would round: floats of 8 bits, complex numbers."""
    import torch

    whole, real = (torch.int64, torch.int32), (torch.float32, torch.float64)
    kinds = {"offsets": whole, "token_ids": whole, "teacher_top1": (torch.bool,)}
    for name, tensor in tensors.items():
        legal = kinds.get(name, real)
        if tensor.dtype not in legal:
            raise DataError(f"{path}: {name} is {tensor.dtype}; expected {legal[0]}. Score into a new folder")
