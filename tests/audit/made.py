"""Small folders of scores with chosen or random responses, written by `store.write_part`; the audit of a run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_uecr.audit.runs import batch_audit
from nemo_uecr.audit.store import Scored, joined_plan, read_scored, write_part, write_plan
from nemo_uecr.config.load import load_config
from nemo_uecr.demo.task import build_tokenizer
from nemo_uecr.responses.table import sampled_tokens

MODEL = {"name": "made", "sha256": None}
PLAN = {
    "teacher": MODEL, "anchors": {"student": "made", "base": MODEL}, "students": {}, "sources": {},
    "dtype": "float32", "temperature": 1.0, "max_length": None, "engine": "made",
}  # fmt: skip
TOKENIZER = build_tokenizer()
#: Its second step is wrong.
FAILED = "1+1=2\n2+2=5\n5+1=6\n\\boxed{6}"


@dataclass(frozen=True)
class Made:
    """One response; ``gaps`` are log pi_T - log pi_student of its tokens, those to the base are twice as large."""

    problem: str
    reward: float | None
    gaps: Sequence[float]
    checkpoint: int = 0
    entropies: Sequence[float] | None = None
    logp: float = 0.0  # the teacher's of every token; lower by twice a negative gap
    response: str = ""
    question: str = "question"
    prompt: str = ""  # what the model read; by default each problem's own
    answer: str = "1"
    truncated: bool = False
    cut: bool = False


def encoded(text: str) -> list[int]:
    """The text's tokens and the end token."""
    return [*TOKENIZER(text, add_special_tokens=False)["input_ids"], TOKENIZER.eos_token_id]


def random_responses(samples: Mapping[int, int], *, problems: int, tokens: int, seed: int) -> list[Made]:
    """``samples`` responses to each problem by checkpoint; gaps depend on reward and entropy, lengths vary."""
    dice, made = np.random.default_rng(seed), list[Made]()
    for step, count in samples.items():
        for problem, chance in enumerate(dice.beta(0.3, 0.3, problems)):
            for _ in range(count):
                reward, entropy_N = float(dice.random() < chance), dice.exponential(0.5, max(2, dice.poisson(tokens)))
                gap_N = 0.03 * reward + dice.normal(0.0, 0.02 + 0.8 * entropy_N)
                made.append(Made(str(problem), reward, gap_N.tolist(), step, entropy_N.tolist(), -0.4))
    return made


def failed_groups(problems: int = 3) -> list[Made]:
    """Groups of eight: six failed responses, one of them without reasoning, and two correct ones."""
    dice, made = random.Random(0), list[Made]()
    for problem in range(problems):
        for number in range(8):
            text = "\\boxed{3}" if number == 5 else FAILED
            size = len(encoded(text))
            gaps = [dice.gauss(0, 1.5) for _ in range(size)]
            entropies = [dice.expovariate(1.5) for _ in range(size)]
            question = "Start with 1: +1 +2 +1 = ?"
            made.append(Made(f"p{problem}", number >= 6, gaps, entropies=entropies, response=text, question=question))
    return made


def write_scores(folder: Path, made: Sequence[Made], *, part: int = 1000) -> Scored:
    """Write and read back, ``part`` responses per part. The responses are named r0, r1, ..."""
    seen = Counter[tuple[int, str]]()
    rows = list[dict[str, Any]]()
    for number, each in enumerate(made):
        key = (each.checkpoint, each.problem)
        rows.append({
            "id": f"r{number}", "checkpoint": each.checkpoint, "benchmark": "made", "problem": each.problem,
            "sample": seen[key], "group": f"{each.checkpoint}/{each.problem}", "question": each.question,
            "answer": each.answer, "response": each.response, "prompt_ids": encoded(each.prompt or each.problem),
            "truncated": each.truncated,
            "correct": None if each.reward is None else each.reward == 1.0, "cut": each.cut, "ids_from": "sampled",
        })  # fmt: skip
        seen[key] += 1
    write_plan(folder, joined_plan(folder, PLAN, {f"r{number}" for number in range(len(made))})[0])
    for step in sorted({each.checkpoint for each in made}):  # a part has one checkpoint's
        own = [place for place, each in enumerate(made) if each.checkpoint == step]
        for places in (own[start : start + part] for start in range(0, len(own), part)):
            columns = {name: [rows[place][name] for place in places] for name in rows[0]}
            write_part(folder, columns, _tensors([made[place] for place in places]))
    return read_scored(folder)


def _tensors(made: Sequence[Made]) -> dict[str, torch.Tensor]:
    tokens = sampled_tokens(
        [own if len(own := encoded(each.response)) == len(each.gaps) else range(len(each.gaps)) for each in made]
    )
    gap_N = torch.tensor([gap for each in made for gap in each.gaps])
    below_N = torch.where(gap_N < 0, 2 * gap_N, 0.0)  # keeps both anchors' log-probabilities from being positive
    teacher_N = torch.tensor([each.logp for each in made for _ in each.gaps]) + below_N
    entropy = [value for each in made for value in (each.entropies or [0.5] * len(each.gaps))]
    scores = {
        "teacher_logp": teacher_N,
        "teacher_entropy": torch.tensor(entropy),
        "teacher_rank": torch.where(teacher_N > -0.5, 1, 2).int(),
        "old_logp": teacher_N - gap_N,
        "anchor_base": teacher_N - 2 * gap_N,
    }
    empty = {name: torch.zeros(tokens["sampled"].shape, dtype=value_N.dtype) for name, value_N in scores.items()}
    return tokens | {name: empty[name].masked_scatter(tokens["sampled"], value_N) for name, value_N in scores.items()}


def audited(run: Path) -> dict[str, Any]:
    """The batch audit of a run."""
    return batch_audit(run, Path(load_config(run / "config.yaml", ()).config.data.train)).numbers


def faults(run: Path) -> list[tuple[int, str]]:
    return [(each["step"], each["fault"]) for each in audited(run)["faults"]]
