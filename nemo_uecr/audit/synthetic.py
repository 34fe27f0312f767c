"""Made scores of the paper's sizes, to try an audit or to time it. Nothing in them says anything about a model.

Shape legend: B = responses, N = tokens in a flat list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_uecr.audit.parts import keep_plan, write_part
from nemo_uecr.audit.progress import ProgressLine
from nemo_uecr.audit.schema import ANCHOR, STUDENT
from nemo_uecr.files import new_folder

Array = np.ndarray

#: A model that nobody has.
MODEL: dict[str, str | None] = {"name": "made", "sha256": None}


@dataclass(frozen=True)
class Size:
    """How much to make.

    Attributes:
        samples: responses a problem, by checkpoint.
        problems: problems of each checkpoint.
        tokens: mean tokens a response.
    """

    samples: dict[int, int]
    problems: int
    tokens: int


_EVERY_30 = range(30, 481, 30)
#: The paper's checkpoints, problems and samples. Responses are as long as the paper's only where tokens are counted.
PAPER: dict[str, Size] = {
    "signal": Size(dict.fromkeys(range(0, 19 * 27, 27), 8), 150, 64),
    "token-credit": Size({0: 8}, 300, 8_980),
    "group-signal": Size(
        dict.fromkeys(sorted({30, 110, 190, 270, 350, 430, 515} | {60, 90, 120, 180, 210, 230}), 12), 40, 64
    ),
    "alpha-sweep": Size({step: 24 if step <= 240 else 12 for step in (*_EVERY_30, 515)}, 40, 64),
}


def make_scores(folder: Path, size: Size, *, seed: int) -> None:
    """Write a folder of scores that is complete or absent.

    The rewards are binary and depend on the problem, the gaps depend on reward and entropy.
    """
    with new_folder(folder) as out:
        _fill(out, size, seed)


def _fill(folder: Path, size: Size, seed: int) -> None:
    generator = np.random.default_rng(seed)
    made_plan(folder, MODEL, {STUDENT: "made", "base": MODEL}, size.samples)
    # So wide a spread over problems that about two fifths are never or always solved, as in the paper's sweep.
    ability = generator.normal(-1.0, 3.6, size.problems)
    part = 0
    with ProgressLine("made responses", sum(size.samples.values()) * size.problems) as progress:
        for step, samples in size.samples.items():
            chance = 1.0 / (1.0 + np.exp(-(ability + step / 300)))
            for first in range(0, size.problems, 50):
                problems = np.repeat(np.arange(first, min(first + 50, size.problems)), samples)
                reward_B = (generator.random(len(problems)) < chance[problems]).astype(np.float64)
                tensors, lengths = _tokens(reward_B, size.tokens, generator)
                rows = _rows(step, problems, samples, reward_B, lengths)
                write_part(folder, part, rows, tensors)
                part += 1
                progress.advance(len(rows))


def _tokens(reward_B: Array, tokens: int, generator: np.random.Generator) -> tuple[dict[str, torch.Tensor], Array]:
    lengths = np.maximum(2, generator.gamma(4.0, tokens / 4.0, len(reward_B)).astype(np.int64))
    total = int(lengths.sum())
    # Most tokens are certain; uncertain ones have wide gaps.
    entropy_N = np.where(generator.random(total) < 0.7, 0.02, 1.0) * generator.exponential(0.6, total)
    level_B = 0.03 * reward_B + generator.normal(0.0, 0.04, len(reward_B))
    gap_N = np.repeat(level_B, lengths) + generator.normal(0.0, 1.0, total) * (0.02 + 0.8 * entropy_N)
    # No anchor's log-probability may be positive: where the teacher is below it, the teacher bears the whole gap.
    teacher_N = -generator.exponential(1.0, total) * (entropy_N + 1e-3) + np.minimum(1.2 * gap_N, 0.0)
    tensors = {
        "offsets": torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),
        "token_ids": torch.from_numpy(generator.integers(0, 1000, total, dtype=np.int32)),
        "teacher_logp": torch.from_numpy(teacher_N.astype(np.float32)),
        "teacher_entropy": torch.from_numpy(entropy_N.astype(np.float32)),
        "teacher_top1": torch.from_numpy(generator.random(total) < np.exp(-entropy_N)),
        ANCHOR + STUDENT: torch.from_numpy((teacher_N - gap_N).astype(np.float32)),
        ANCHOR + "base": torch.from_numpy((teacher_N - 1.2 * gap_N).astype(np.float32)),
    }
    return tensors, lengths


def _rows(step: int, problems: Array, samples: int, reward_B: Array, lengths: Array) -> list[dict[str, Any]]:
    return [
        made_row(
            step, problem, place % samples, int(lengths[place]),
            question=f"made problem {problem}", answer=str(problem),
            response=f"\\boxed{{{problem if reward_B[place] else -1}}}", reward=float(reward_B[place]),
        )
        for place, problem in enumerate(problems.tolist())
    ]  # fmt: skip


def made_plan(
    folder: Path, teacher: Mapping[str, Any], anchors: Mapping[str, object], checkpoints: Iterable[int]
) -> None:
    """Begin a folder of made scores."""
    keep_plan(
        folder,
        {
            "teacher": teacher, "anchors": anchors, "students": {str(step): MODEL for step in checkpoints},
            "sources": {}, "dtype": "float32", "temperature": 1.0, "max_length": None, "engine": "made",
        },
    )  # fmt: skip


def made_row(
    checkpoint: int, problem: int, sample: int, tokens: int, *, question: str, answer: str, response: str, reward: float
) -> dict[str, Any]:
    """The row of a made response, all of whose tokens were sampled and scored."""
    return {
        "id": f"step {checkpoint}/made/{problem}/{sample}",
        "checkpoint": checkpoint,
        "benchmark": "made",
        "problem": str(problem),
        "sample": sample,
        "group": f"{checkpoint}/made/{problem}",
        "question": question,
        "answer": answer,
        "response": response,
        "reward": reward,
        "prompt_ids": [1],
        "sampled_tokens": tokens,
        "scored_tokens": tokens,
        "truncated": False,
        "cut": False,
        "ids_from": "sampled",
        "nonfinite_tokens": 0,
    }
