"""Folders of scores written by hand: each response with the gaps and entropies that a test gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nemo_uecr.audit.parts import keep_plan, write_part
from nemo_uecr.audit.rollouts import Scores, read_scores

MODEL = {"name": "made", "sha256": None}


@dataclass(frozen=True)
class Made:
    """One response; ``gaps`` are log pi_T - log pi_student of its tokens, the base's are twice as large."""

    problem: str
    reward: float | None
    gaps: Sequence[float]
    checkpoint: int = 0
    entropies: Sequence[float] | None = None
    logp: float = -1.0
    group: str | None = None
    response: str = ""
    answer: str | None = "1"
    truncated: bool = False
    cut: bool = False


def write_scores(folder: Path, made: Sequence[Made], *, part: int = 1000) -> Scores:
    """Write and read back; ``part`` responses a part."""
    keep_plan(
        folder,
        {
            "teacher": MODEL, "anchors": {"student": "made", "base": MODEL}, "students": {}, "sources": {},
            "dtype": "float32", "temperature": 1.0, "max_length": None, "engine": "made",
        },
    )  # fmt: skip
    rows = [_row(number, each) for number, each in enumerate(made)]
    for number, start in enumerate(range(0, len(made), part)):
        span = slice(start, start + part)
        write_part(folder, number, rows[span], _tensors(made[span]))
    return read_scores(folder)


def _row(number: int, each: Made) -> dict[str, Any]:
    return {
        "id": f"r{number}",
        "checkpoint": each.checkpoint,
        "benchmark": "made",
        "problem": each.problem,
        "sample": number,
        "group": each.group or f"{each.checkpoint}/{each.problem}",
        "question": f"question {each.problem}",
        "answer": each.answer,
        "response": each.response,
        "reward": each.reward,
        "prompt_ids": [1, 2],
        "sampled_tokens": len(each.gaps) + (5 if each.cut else 0),
        "scored_tokens": len(each.gaps),
        "truncated": each.truncated,
        "cut": each.cut,
        "ids_from": "sampled",
        "nonfinite_tokens": 0,
    }


def _tensors(made: Sequence[Made]) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([0, *(len(each.gaps) for each in made)])
    gap_N = torch.tensor([gap for each in made for gap in each.gaps])
    # below a negative gap by as much as keeps both anchors' log-probabilities from being positive
    below_N = torch.where(gap_N < 0, 2 * gap_N, 0.0)
    teacher_N = torch.tensor([each.logp for each in made for _ in each.gaps]) + below_N
    entropy = [value for each in made for value in (each.entropies or [0.5] * len(each.gaps))]
    return {
        "offsets": lengths.cumsum(0),
        "token_ids": torch.arange(len(gap_N), dtype=torch.int32),
        "teacher_logp": teacher_N,
        "teacher_entropy": torch.tensor(entropy),
        "teacher_top1": teacher_N > -0.5,
        "anchor.student": teacher_N - gap_N,
        "anchor.base": teacher_N - 2 * gap_N,
    }
