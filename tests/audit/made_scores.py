"""A folder of scores of failed and right responses to made problems, written through the product's own writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nemo_uecr.audit.parts import keep_plan, write_part
from nemo_uecr.audit.rollouts import Scores, read_scores
from nemo_uecr.demo.tokenizer import build_tokenizer
from tests.audit.made import MODEL

TOKENIZER = build_tokenizer()


@dataclass(frozen=True)
class Made:
    """One response: its text, whether it is right, and its tokens' gaps and teacher entropies."""

    problem: str
    text: str
    right: bool
    gap: tuple[float, ...]
    entropy: tuple[float, ...]


def encoded(text: str) -> list[int]:
    """The text's tokens and the end token."""
    return [*TOKENIZER(text, add_special_tokens=False)["input_ids"], TOKENIZER.eos_token_id]


def scores_of(folder: Path, responses: Sequence[Made]) -> Scores:
    """Write and read back."""
    plan = {"teacher": MODEL, "anchors": {"student": "made"}, "students": {"0": MODEL}, "sources": {"made": "made"}}
    keep_plan(folder, plan)
    ids = [encoded(each.text) for each in responses]
    for each, tokens in zip(responses, ids, strict=True):
        assert len(each.gap) == len(each.entropy) == len(tokens), each.text
    rows = [
        {
            "id": f"{each.problem}/{number}", "checkpoint": 0, "benchmark": "made", "problem": each.problem,
            "sample": number, "group": each.problem, "question": f"question of {each.problem}", "answer": "1",
            "response": each.text, "reward": float(each.right), "prompt_ids": [1], "sampled_tokens": len(tokens),
            "scored_tokens": len(tokens), "truncated": False, "cut": False, "ids_from": "sampler",
            "nonfinite_tokens": 0,
        }
        for number, (each, tokens) in enumerate(zip(responses, ids, strict=True))
    ]  # fmt: skip
    gap = torch.tensor([value for each in responses for value in each.gap])
    tensors = {
        "offsets": torch.tensor([0, *[len(tokens) for tokens in ids]]).cumsum(0),
        "token_ids": torch.tensor([token for tokens in ids for token in tokens]),
        "teacher_logp": gap.clamp(max=0.0),  # the difference is the gap exactly, and neither is positive
        "teacher_entropy": torch.tensor([value for each in responses for value in each.entropy]),
        "teacher_top1": torch.ones(len(gap), dtype=torch.bool),
        "anchor.student": -gap.clamp(min=0.0),
    }
    write_part(folder, 0, rows, tensors)
    return read_scores(folder)
