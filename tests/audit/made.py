"""Made folders of scores, written through the product's own writer: by hand, or at random and as large as is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_uecr.audit.store import Scores, joined_plan, read_scores, write_part, write_plan
from nemo_uecr.study.task import build_tokenizer

Part = tuple[list[dict[str, Any]], dict[str, torch.Tensor]]

MODEL = {"name": "made", "sha256": None}
PLAN = {
    "teacher": MODEL, "anchors": {"student": "made", "base": MODEL}, "students": {}, "sources": {},
    "dtype": "float32", "temperature": 1.0, "max_length": None, "engine": "made",
}  # fmt: skip
TOKENIZER = build_tokenizer()


def write_parts(folder: Path, parts: Sequence[Part]) -> Scores:
    """Write and read back."""
    ids = {row["id"] for rows, _ in parts for row in rows}
    write_plan(folder, joined_plan(folder, PLAN, ids)[0])
    for rows, tensors in parts:
        write_part(folder, rows, tensors)
    return read_scores(folder)


def row(tokens: int, **values: Any) -> dict[str, Any]:
    """The row of a response, all of whose tokens were sampled and scored."""
    return {
        "checkpoint": 0, "benchmark": "made", "sample": 0, "question": "question", "answer": "1", "response": "",
        "reward": 0.0, "prompt_ids": [1, 2], "sampled_tokens": tokens, "scored_tokens": tokens, "truncated": False,
        "cut": False, "ids_from": "sampled", "nonfinite_tokens": 0,
    } | values  # fmt: skip


# By hand


@dataclass(frozen=True)
class Made:
    """One response; ``gaps`` are log pi_T - log pi_student of its tokens, the base's are twice as large."""

    problem: str
    reward: float | None
    gaps: Sequence[float]
    checkpoint: int = 0
    entropies: Sequence[float] | None = None
    logp: float = 0.0  # the teacher's of every token; lower by twice a negative gap
    response: str = ""
    question: str = "question"
    answer: str = "1"
    truncated: bool = False
    cut: bool = False


def encoded(text: str) -> list[int]:
    """The text's tokens and the end token."""
    return [*TOKENIZER(text, add_special_tokens=False)["input_ids"], TOKENIZER.eos_token_id]


def write_scores(folder: Path, made: Sequence[Made], *, part: int = 1000) -> Scores:
    """Write and read back; ``part`` responses a part. A response's name says its place: r0, r1, ..."""
    rows = [
        row(
            len(each.gaps), id=f"r{number}", checkpoint=each.checkpoint, problem=each.problem, sample=number,
            group=f"{each.checkpoint}/{each.problem}", question=each.question, answer=each.answer,
            response=each.response, reward=each.reward, truncated=each.truncated, cut=each.cut,
            sampled_tokens=len(each.gaps) + (5 if each.cut else 0),
        )
        for number, each in enumerate(made)
    ]  # fmt: skip
    spans = [slice(start, start + part) for start in range(0, len(made), part)]
    return write_parts(folder, [(rows[span], _tensors(made[span])) for span in spans])


def _tensors(made: Sequence[Made]) -> dict[str, torch.Tensor]:
    gap_N = torch.tensor([gap for each in made for gap in each.gaps])
    below_N = torch.where(gap_N < 0, 2 * gap_N, 0.0)  # keeps both anchors' log-probabilities from being positive
    teacher_N = torch.tensor([each.logp for each in made for _ in each.gaps]) + below_N
    entropy = [value for each in made for value in (each.entropies or [0.5] * len(each.gaps))]
    ids = [own if len(own := encoded(each.response)) == len(each.gaps) else range(len(each.gaps)) for each in made]
    return {
        "token_ids": torch.tensor([token for own in ids for token in own], dtype=torch.int32),
        "teacher_logp": teacher_N,
        "teacher_entropy": torch.tensor(entropy),
        "teacher_rank": torch.where(teacher_N > -0.5, 1, 2).int(),
        "anchor_student": teacher_N - gap_N,
        "anchor_base": teacher_N - 2 * gap_N,
    }


# At random


def make_scores(folder: Path, samples: Mapping[int, int], *, problems: int, tokens: int, seed: int) -> Scores:
    """Scores in which rewards depend on the problem, and gaps on reward and entropy.

    Args:
        folder: a new folder.
        samples: responses to each problem, by checkpoint.
        problems: of each checkpoint.
        tokens: mean tokens a response.
        seed: of everything.
    """
    generator = np.random.default_rng(seed)
    # So wide a spread over problems that about two fifths are never or always solved, as in the paper's sweep.
    ability_K = generator.normal(-1.0, 3.6, problems)
    parts = []
    for step, count in samples.items():
        chance_K = 1.0 / (1.0 + np.exp(-(ability_K + step / 300)))
        problem_B = np.repeat(np.arange(problems), count)
        reward_B = (generator.random(len(problem_B)) < chance_K[problem_B]).astype(np.float64)
        tensors, length_B = _random_tokens(reward_B, tokens, generator)
        rows = [
            row(
                int(length_B[place]), id=f"step {step}/{problem}/{place % count}", checkpoint=step,
                problem=str(problem), sample=place % count, group=f"{step}/{problem}", reward=float(reward_B[place]),
            )
            for place, problem in enumerate(problem_B.tolist())
        ]  # fmt: skip
        parts.append((rows, tensors))
    return write_parts(folder, parts)


def _random_tokens(
    reward_B: np.ndarray, tokens: int, generator: np.random.Generator
) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    length_B = np.maximum(2, generator.gamma(4.0, tokens / 4.0, len(reward_B)).astype(np.int64))
    total = int(length_B.sum())
    # Most tokens are certain; uncertain ones have wide gaps.
    entropy_N = np.where(generator.random(total) < 0.7, 0.02, 1.0) * generator.exponential(0.6, total)
    level_B = 0.03 * reward_B + generator.normal(0.0, 0.04, len(reward_B))
    gap_N = np.repeat(level_B, length_B) + generator.normal(0.0, 1.0, total) * (0.02 + 0.8 * entropy_N)
    teacher_N = -generator.exponential(1.0, total) * (entropy_N + 1e-3) + np.minimum(1.2 * gap_N, 0.0)
    scores = {
        "teacher_logp": teacher_N, "teacher_entropy": entropy_N, "anchor_student": teacher_N - gap_N,
        "anchor_base": teacher_N - 1.2 * gap_N,
    }  # fmt: skip
    tensors = {
        "token_ids": torch.from_numpy(generator.integers(0, 1000, total, dtype=np.int32)),
        "teacher_rank": torch.from_numpy(np.where(generator.random(total) < np.exp(-entropy_N), 1, 2).astype(np.int32)),
    }
    return tensors | {name: torch.from_numpy(value_N).float() for name, value_N in scores.items()}, length_B
