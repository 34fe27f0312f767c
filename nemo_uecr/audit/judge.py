"""Blinded pairs for a judge of process quality, and the judge's agreement with the teacher's score.

The judge sees a problem, its reference answer and two responses in random order. Which responses they are stands in a
key that the judge does not get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_uecr.audit.groups import group_table
from nemo_uecr.audit.judging_folder import blind_name, check_judgement, key_rows, verdict_rows, write_judging
from nemo_uecr.audit.responses import Responses
from nemo_uecr.audit.rollouts import Scores
from nemo_uecr.audit.share import Sampler
from nemo_uecr.audit.sources import require
from nemo_uecr.errors import DataError

Array = np.ndarray

PAIRS = "pairs.jsonl"
PREFERENCES = ("first", "second", "tie", "unjudgeable")


@dataclass(frozen=True)
class JudgedPair:
    """A judge's word on two responses of one verifier-degenerate group."""

    first: str
    second: str
    preferred: str


def write_pairs(scores: Scores, folder: Path, *, pairs: int, seed: int) -> int:
    """Write pairs to judge, and their key: one pair of different texts of each of randomly chosen degenerate groups.

    Returns:
        How many pairs were written: fewer than asked where there are fewer such groups.

    Raises:
        DataError: If the folder has the key of another judgement.
    """
    table, generator = group_table(scores.responses), np.random.default_rng(seed)
    tied = np.flatnonzero(~table.mixed_P)
    columns = {name: scores.column(name) for name in ("question", "answer", "response")}
    shown: list[dict[str, Any]] = []
    key: list[dict[str, str]] = []
    for group in generator.permutation(tied):
        first, *others = generator.permutation(np.flatnonzero(table.index_B == group))
        different = [each for each in others if columns["response"][each] != columns["response"][first]]
        if not different or len(shown) == pairs:
            continue
        second = different[0]
        ids = scores.responses.ids[first], scores.responses.ids[second]
        name = blind_name(seed, *ids)
        texts = {"first": columns["response"][first], "second": columns["response"][second]}
        shown.append(
            {"pair": name, "question": columns["question"][first], "answer": columns["answer"][first], **texts}
        )
        key.append({"pair": name, "first": ids[0], "second": ids[1]})
    write_judging(folder, PAIRS, shown, key)
    return len(shown)


def read_judge(verdicts: Path, key: Path) -> list[JudgedPair]:
    """Join a judge's file, ``{"pair": ..., "preferred": "first|second|tie|unjudgeable"}`` a line, with the key.

    Raises:
        DataError: naming file and line.
    """
    check_judgement(verdicts, key, "the judge's verdicts and the key of `--write-pairs`")
    names = _key(key)
    judged: list[JudgedPair] = []
    for place, row in verdict_rows(verdicts, key, "pair", names):
        require(row, {"preferred": str}, place)
        if row["preferred"] not in PREFERENCES:
            raise DataError(f"{place}: preferred is {row['preferred']!r}; expected one of {', '.join(PREFERENCES)}")
        judged.append(JudgedPair(*names[row["pair"]], row["preferred"]))
    return judged


def _key(path: Path) -> dict[str, tuple[str, str]]:
    names: dict[str, tuple[str, str]] = {}
    for place, row in key_rows(path, "pair", {"first": str, "second": str}):
        if row["first"] == row["second"]:
            raise DataError(f"{place}: first and second are both {row['first']!r}; expected two responses")
        names[row["pair"]] = row["first"], row["second"]
    return names


def agreement(judged: Sequence[JudgedPair], responses: Responses, reward_B: Array, sampler: Sampler) -> dict[str, Any]:
    """Share of judgeable pairs on which the teacher's score prefers what the judge prefers; equal scores count half.

    Raises:
        DataError: If a pair is not of one group, or its responses have different verdicts.
    """
    place = {name: row for row, name in enumerate(responses.ids)}
    agrees, problems, steps = [], [], []
    for pair in judged:
        if pair.first not in place or pair.second not in place:
            raise DataError(f"the judge's pair {pair.first!r}, {pair.second!r} is not among the scored responses")
        first, second = place[pair.first], place[pair.second]
        if responses.group_B[first] != responses.group_B[second]:
            raise DataError(f"{pair.first!r} and {pair.second!r} answer different prompts; expected one group")
        if responses.reward_B[first] != responses.reward_B[second]:
            raise DataError(
                f"{pair.first!r} and {pair.second!r} have different verdicts; expected a verifier-tied pair"
            )
        if pair.preferred not in ("first", "second"):
            continue
        lead = reward_B[first] - reward_B[second] if pair.preferred == "first" else reward_B[second] - reward_B[first]
        agrees.append(0.5 + 0.5 * np.sign(lead))
        problems.append(responses.problem_B[first])
        steps.append(responses.checkpoint_B[first])
    value, problem, step = np.asarray(agrees), np.asarray(problems, dtype=np.int64), np.asarray(steps, dtype=np.int64)
    every = np.ones(len(value), dtype=bool)
    return {
        "pairs": len(judged),
        "judgeable": len(value),
        "all": sampler.mean(value, every, problem),
        "checkpoints": [
            {"checkpoint": int(each)} | sampler.mean(value, step == each, problem) for each in np.unique(step)
        ],
    }
