"""What FP8, or another layout, changes in a teacher's scores: gap, entropy and advantages, token by token.

FIRST and SECOND are the same batch scored in two ways by `nemo-uecr teacher score`. FIRST counts as right.

  nemo-uecr teacher compare bf16.safetensors fp8.safetensors
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.json_file import refuse_unwritable, write_json
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.records import ScoredBatch
    from nemo_uecr.data.batch_file import SavedBatch
    from nemo_uecr.telemetry.teacher_effect import Effect

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("first", type=Path, metavar="FIRST", help="saved batch with the scores that count as right")
    parser.add_argument("second", type=Path, metavar="SECOND", help="the same batch with the scores in question")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    import torch

    from nemo_uecr.data.batch_file import load_batch, scored_batch
    from nemo_uecr.telemetry.teacher_effect import teacher_effect

    if args.json is not None:
        refuse_unwritable(args.json, "--json")
    saved, other = load_batch(args.first), load_batch(args.second)
    ids, their_ids = _token_ids(saved, args.first), _token_ids(other, args.second)
    if ids is not None and their_ids is not None and not torch.equal(ids, their_ids):
        raise DataError(f"{args.first} and {args.second} are about different tokens; score one batch in both ways")
    effects = teacher_effect(
        scored_batch(saved, args.first),
        scored_batch(other, args.second),
        lambda batch: _advantage(saved, batch, args.first),
    )
    sys.stdout.write(_table(effects, method=str(saved.method)))
    if args.json is not None:
        write_json(args.json, [vars(effect) for effect in effects])
    return 0


def _token_ids(saved: SavedBatch, path: Path) -> Tensor | None:
    import torch

    ids = saved.tensors.get("token_ids")
    if ids is not None and ids.dtype not in (torch.int32, torch.int64):
        raise DataError(f"{path}: token_ids has dtype {ids.dtype}; expected int32 or int64")
    return None if ids is None else ids.long()


def _advantage(saved: SavedBatch, batch: ScoredBatch, path: Path) -> Tensor:
    """Final advantages by the method and settings of the run that saved the batch."""
    from nemo_uecr.core.methods import METHODS
    from nemo_uecr.data.batch_file import naming_file
    from nemo_uecr.data.batch_settings import saved_settings

    if saved.method not in METHODS:
        raise DataError(f"the batch names method {saved.method!r}; expected one of {', '.join(METHODS)}")
    settings = saved_settings(saved, path)
    with naming_file(path):
        return METHODS[saved.method].compute(batch, settings, detail=False).advantage_BT


def _table(effects: list[Effect], *, method: str) -> str:
    heads = ("quantity", "unit", "spread", "bias", "mean |d|", "99% |d|", "max |d|", "sign changed")
    rows = [
        (
            effect.quantity,
            effect.unit,
            *(f"{value:.4g}" for value in (effect.spread, effect.bias, effect.mean, effect.high, effect.largest)),
            "-" if effect.flipped is None else f"{100 * effect.flipped:.2f}%",
        )
        for effect in effects
    ]
    lines = ["".join(f"{cell:>13}" for cell in row) for row in (heads, *rows)]
    return "\n".join(
        [*lines, f"d = second - first; spread: standard deviation of the first; advantages of {method}", ""]
    )
