"""Made responses with right and wrong steps of the paper's number, whose weight gaps are known in closed form.

The steps are those of the demo's task, one operation a line, so that the demo's judge can label them. All tokens of a
response's wrong steps have one gap and one entropy, those of its right steps another, the rest a third.

Shape legend: N = tokens in a flat list.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nemo_uecr.audit.judged_steps import GROUP_SIZE
from nemo_uecr.audit.parts import write_part
from nemo_uecr.audit.progress import ProgressLine
from nemo_uecr.audit.schema import ANCHOR, STUDENT
from nemo_uecr.audit.synthetic import made_plan, made_row
from nemo_uecr.data.models import save_tokenizer
from nemo_uecr.files import new_folder

WRONG, RIGHT, OTHER = 0, 1, 2
#: Teacher entropy of the tokens of wrong steps, of right ones, and of the rest, nats: the teacher is surer of an error.
ENTROPY = (0.05, 0.6, 0.4)
#: Settings of the answer that lies beside the scores.
RHO, TAU_DELTA, TAU_ENTROPY = 0.5, 1.0, 1.0
ANSWER, TOKENIZER = "answer.json", "tokenizer"
#: The true value after each step; that of a failed response is `OFFSET` away at most, so both have two digits.
START, LOW, HIGH, OFFSET = 50, 30, 70, 9


@dataclass(frozen=True)
class StepSize:
    """How much to make.

    Attributes:
        problems: groups of eight.
        failed: failed responses of each group.
        steps: steps of each response.
    """

    problems: int
    failed: int
    steps: int


#: The paper's 200 failed responses, five of each of 40 mixed groups.
PAPER_STEPS = StepSize(problems=40, failed=5, steps=430)


@dataclass(frozen=True)
class Planted:
    """One response: its lines, the kind of each, and the teacher's dislike of its wrong steps, nats."""

    lines: tuple[str, ...]
    kinds: tuple[int, ...]
    dislike: float


def make_step_scores(folder: Path, size: StepSize, tokenizer: Any, *, seed: int) -> None:
    """Write a folder of scores, its tokenizer, and the answer that `audit localization` must give; complete or absent.

    Args:
        folder: a new folder.
        size: how much.
        tokenizer: of the responses.
        seed: of everything.
    """
    with new_folder(folder) as out:
        save_tokenizer(tokenizer, out / TOKENIZER)
        made_plan(out, {"name": str(folder / TOKENIZER), "sha256": None}, {STUDENT: "made"}, [0])
        answer = json.dumps(_answer(_write_groups(out, size, tokenizer, seed)), indent=1) + "\n"
        (out / ANSWER).write_text(answer, encoding="utf-8")


def _write_groups(folder: Path, size: StepSize, tokenizer: Any, seed: int) -> list[dict[str, float]]:
    """Write the responses; returns the known gaps of the failed ones."""
    dice, gaps = np.random.default_rng(seed), []
    with ProgressLine("made responses", size.problems * GROUP_SIZE) as progress:
        for problem in range(size.problems):
            operations = _operations(dice, size.steps)
            group = [_response(dice, operations, failed=number < size.failed) for number in range(GROUP_SIZE)]
            encoded = [_encoded(each, tokenizer) for each in group]
            rows = [
                _row(problem, number, operations, response, len(ids))
                for number, (response, (ids, _)) in enumerate(zip(group, encoded, strict=True))
            ]
            write_part(folder, problem, rows, _tensors(group, encoded))
            gaps += [
                known_gap(each.dislike, np.bincount(kind_N, minlength=3).tolist())
                for each, (_, kind_N) in zip(group[: size.failed], encoded, strict=False)
            ]
            progress.advance(GROUP_SIZE)
    return gaps


def known_gap(dislike: float, count: Sequence[int]) -> dict[str, float]:
    """D of one response in closed form.

    With ``t = tanh(a / (2 tau_delta))``, ``c_k = exp(-H_k / tau_entropy)`` and n_k tokens of wrong (w), right (r) and
    other (o) kind: ``mu = t (n_w c_w - n_r c_r) / (n_w c_w + n_r c_r + n_o c_o)`` and
    ``D = rho/2 (c_w (t - mu) + c_r (t + mu))``; with c = 1 that is ``rho t``. A shuffle gives both kinds the mean
    confidence, ``rho t mean(c)``, up to its sampling error.

    Args:
        dislike: a, the gap is -a on wrong and +a on right steps, nats.
        count: [3] tokens of each kind.
    """
    t = math.tanh(dislike / (2 * TAU_DELTA))
    mass = [n * math.exp(-entropy / TAU_ENTROPY) for n, entropy in zip(count, ENTROPY, strict=True)]
    mu = t * (mass[WRONG] - mass[RIGHT]) / sum(mass)
    sure = [math.exp(-entropy / TAU_ENTROPY) for entropy in ENTROPY]
    return {
        "PUU": 0.0,
        "no entropy": RHO * t,
        "shuffled, mean": RHO * t * sum(mass) / sum(count),
        "full ECR": RHO / 2 * (sure[WRONG] * (t - mu) + sure[RIGHT] * (t + mu)),
    }


def _operations(dice: np.random.Generator, steps: int) -> list[tuple[str, int]]:
    value, found = START, []
    for operand in dice.integers(2, 10, steps).tolist():
        up = value + operand <= HIGH and (value - operand < LOW or dice.random() < 0.5)
        value += operand if up else -operand
        found.append(("+" if up else "-", operand))
    return found


def _response(dice: np.random.Generator, operations: Sequence[tuple[str, int]], *, failed: bool) -> Planted:
    """A chain of steps; in a failed one about a quarter are wrong, never the first, and the last value is wrong."""
    share = dice.uniform(0.1, 0.4) if failed else 0.0
    wrong = dice.random(len(operations)) < share
    wrong[0], wrong[-1] = False, failed
    lines, true, offset = [], START, 0
    for (sign, operand), err in zip(operations, wrong.tolist(), strict=True):
        before = true + offset
        true += operand if sign == "+" else -operand
        if err:  # another offset than before, and never the right value again
            offset = int(dice.choice([each for each in range(-OFFSET, OFFSET + 1) if each not in (0, offset)]))
        lines.append(f"{before}{sign}{operand}={true + offset}\n")
    kinds = [WRONG if err else RIGHT for err in wrong]
    # The teacher dislikes the wrong steps of nine responses in ten, and the right ones of the tenth.
    dislike = float(dice.uniform(0.1, 1.0) * (1.0 if dice.random() < 0.9 else -1.0))
    return Planted((*lines, f"\\boxed{{{true + offset}}}"), (*kinds, OTHER), dislike)


def _encoded(response: Planted, tokenizer: Any) -> tuple[list[int], np.ndarray]:
    """Token ids, the end token included, and the kind of each: encoded by line, so no token crosses a step."""
    ids: list[int] = []
    kinds: list[int] = []
    for line, kind in zip(response.lines, response.kinds, strict=True):
        own = tokenizer(line, add_special_tokens=False)["input_ids"]
        ids += own
        kinds += [kind] * len(own)
    return [*ids, int(tokenizer.eos_token_id)], np.asarray([*kinds, OTHER])


def _tensors(group: Sequence[Planted], encoded: Sequence[tuple[list[int], np.ndarray]]) -> dict[str, torch.Tensor]:
    gap_N = torch.from_numpy(
        np.concatenate([
            each.dislike * np.asarray([-1.0, 1.0, 0.0])[kind_N]
            for each, (_, kind_N) in zip(group, encoded, strict=True)
        ])
    ).float()  # fmt: skip
    kind_N = np.concatenate([kind for _, kind in encoded])
    return {
        "offsets": torch.tensor([0, *[len(ids) for ids, _ in encoded]]).cumsum(0),
        "token_ids": torch.tensor([token for ids, _ in encoded for token in ids], dtype=torch.int32),
        "teacher_logp": gap_N.clamp(max=0.0),  # the difference is the gap exactly, and neither is positive
        "teacher_entropy": torch.from_numpy(np.asarray(ENTROPY)[kind_N]).float(),
        "teacher_top1": torch.from_numpy(kind_N != WRONG),
        ANCHOR + STUDENT: -gap_N.clamp(min=0.0),
    }


def _row(
    problem: int, number: int, operations: Sequence[tuple[str, int]], response: Planted, tokens: int
) -> dict[str, Any]:
    answer = START + sum(operand if sign == "+" else -operand for sign, operand in operations)
    chain = " ".join(f"{sign}{operand}" for sign, operand in operations)
    return made_row(
        0, problem, number, tokens,
        question=f"Start with {START}: {chain} = ?", answer=str(answer),
        response="".join(response.lines), reward=float(WRONG not in response.kinds),
    )  # fmt: skip


def _answer(gaps: Sequence[dict[str, float]]) -> dict[str, Any]:
    return {
        "settings": {"rho": RHO, "tau_delta": TAU_DELTA, "tau_entropy": TAU_ENTROPY},
        "responses": len(gaps),
        "gap": {name: math.fsum(each[name] for each in gaps) / len(gaps) for name in gaps[0]},
        "positive": sum(each["full ECR"] > 0 for each in gaps) / len(gaps),
    }
