"""What a teacher alone reads of a saved batch: its rows and its header, refused before anything starts.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nemo_uecr.data.batch_file import FORMAT, REQUIRED, SavedBatch, saved_settings, scored_batch
from nemo_uecr.errors import DataError
from nemo_uecr.method_registry import REGISTRY

__all__ = ["Header", "header_of", "rows_of"]

#: What a comparison of two teachers reads besides their own scores.
KEPT = (*REQUIRED, "initial_logp", "segments")
LONGEST_STEP = 15
"""Digits."""


@dataclass(frozen=True)
class Header:
    """What the scored batch takes over from the one that was read."""

    method: str
    settings: dict[str, object]
    step: int


def header_of(saved: SavedBatch) -> Header:
    """The header's method, settings and step.

    Raises:
        DataError: one of them is not there, or is none.
    """
    header = saved.header
    if header.get("format") != FORMAT:
        raise DataError(f"the batch has the format {header.get('format')!r}; expected {FORMAT!r}, as a run saves it")
    if saved.method not in REGISTRY:
        raise DataError(f"the batch names the method {saved.method!r}; expected one of {', '.join(REGISTRY)}")
    if "settings" not in header:
        raise DataError("the batch has no settings in its header; expected those of the run that saved it")
    saved_settings(saved, "the batch")
    step = header.get("step", "")
    if not (step.isascii() and step.isdecimal() and len(step) <= LONGEST_STEP):
        raise DataError(f"the batch has the step {step[:40]!r} in its header; expected the number of a training step")
    return Header(saved.method, dict[str, object](saved.settings), int(step))


def rows_of(saved: SavedBatch, vocabulary: int) -> dict[str, Tensor]:
    """The columns that scoring reads of a saved batch; a row ends with its last sampled token.

    Args:
        saved: the batch.
        vocabulary: V, the columns of the student that wrote it.

    Raises:
        DataError: the token ids are none of that vocabulary, or the mask is none of those ids.
        ScoreError: rewards, groups or the student's scores do not fit them.
    """
    if "token_ids" not in saved.tensors:
        raise DataError("the batch has no token_ids; expected one that a run of the NeMo-RL back end saved")
    ids_BS, mask_BS = saved.tensors["token_ids"], saved.tensors["mask"]
    _check_shapes(ids_BS, mask_BS)
    _check_ids(ids_BS, vocabulary)
    mask_BS = _as_mask(mask_BS)
    _check_rest(saved)
    return {
        "input_ids": ids_BS.long(),
        "input_lengths": _lengths(mask_BS),
        "token_mask": mask_BS.float(),
        "sample_mask": torch.ones(ids_BS.shape[0]),
    }


def _check_shapes(ids_BS: Tensor, mask_BS: Tensor) -> None:
    if ids_BS.shape != mask_BS.shape:
        raise DataError(
            f"token_ids has shape {list(ids_BS.shape)} and mask {list(mask_BS.shape)}; expected the same, prompt "
            "included, as a run of the NeMo-RL back end saves them"
        )
    if ids_BS.ndim != 2 or not ids_BS.numel():
        raise DataError(f"token_ids has shape {list(ids_BS.shape)}; expected one row a response and one column a token")


def _check_ids(ids_BS: Tensor, vocabulary: int) -> None:
    if ids_BS.dtype not in (torch.int32, torch.int64):
        raise DataError(f"token_ids has dtype {ids_BS.dtype}; expected int32 or int64")
    smallest, largest = int(ids_BS.min()), int(ids_BS.max())
    if smallest < 0:
        raise DataError(f"the batch has token id {smallest}; expected ids from 0: the file was altered")
    if largest >= vocabulary:
        raise DataError(
            f"the batch has token id {largest}; expected ids below student.vocabulary={vocabulary}: give the "
            "configuration of the run that saved it"
        )


def _as_mask(mask_BS: Tensor) -> Tensor:
    if mask_BS.is_complex() or not bool(((mask_BS == 0) | (mask_BS == 1)).all()):
        raise DataError("the batch's mask holds values other than 0 and 1; expected bool")
    mask_BS = mask_BS.bool()
    empty_B = ~mask_BS.any(dim=1)
    if bool(empty_B.any()):
        raise DataError(
            f"the batch's mask has no token in row {int(empty_B.nonzero()[0])}; expected the sampled tokens of each "
            "response"
        )
    return mask_BS


def _check_rest(saved: SavedBatch) -> None:
    """Refuse rewards, groups and scores that do not fit the rows: whoever compares the teachers reads them."""
    kept = {name: tensor for name, tensor in saved.tensors.items() if name in KEPT}
    scored_batch(SavedBatch(kept, saved.header), Path("the batch"))


def _lengths(mask_BS: Tensor) -> Tensor:
    position_S = torch.arange(1, mask_BS.shape[1] + 1)
    return (mask_BS * position_S).max(dim=1).values
