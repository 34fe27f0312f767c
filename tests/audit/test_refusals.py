"""Inputs of the audits that cannot be used: each is refused in one line that names it, or left out and counted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="scores are read with pyarrow (extra 'data')")

from nemo_uecr.audit.efficiency import Run, efficiency_audit
from nemo_uecr.audit.file_source import evaluation_source, jsonl_source
from nemo_uecr.audit.judge import JudgedPair, read_judge
from nemo_uecr.audit.output import write_audit
from nemo_uecr.audit.rollouts import read_scores
from nemo_uecr.audit.signal import signal_audit
from nemo_uecr.audit.step_judge import read_labels
from nemo_uecr.audit.token_table import token_table
from nemo_uecr.errors import DataError
from tests.audit.made import Made, write_scores
from tests.audit.test_localization import audited, labelled, responses, scores_of

TIED = [Made("a", 0.0, [0.1]), Made("a", 0.0, [0.3])]
ROW: dict[str, Any] = {"problem": "p", "response": "r", "prompt": "q", "checkpoint": 0, "truncated": False}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("preferred", ["tie", "unjudgeable"])
def test_a_judge_who_prefers_nothing_is_drawn(tmp_path: Path, preferred: str) -> None:
    scores = write_scores(tmp_path / "s", TIED)
    audit = signal_audit(scores, [JudgedPair("r0", "r1", preferred)], replicates=5, seed=0)
    write_audit(tmp_path / "out", audit)
    assert audit.numbers["judge"]["judgeable"] == 0
    assert len(list((tmp_path / "out").rglob("*.png"))) == 1


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])  # the last is a matter of the anchor alone
def test_a_judged_response_without_finite_scores_is_left_out_and_counted(tmp_path: Path, bad: float) -> None:
    made = responses()
    first = made[0]
    made[0] = type(first)(first.problem, first.text, first.right, (bad, *first.gap[1:]), first.entropy)
    scores = scores_of(tmp_path / "bad", made)
    numbers = audited(scores).numbers
    assert numbers["selection"]["left_out_nonfinite"] == 1
    assert numbers["selection"]["eligible"] == len(labelled(scores)) - 1
    assert math.isfinite(numbers["variants"]["full ECR"]["gap"]["value"])


@pytest.mark.parametrize(
    ("key", "verdict", "message"),
    [
        ({"pair": "a", "first": "x", "second": "x"}, {"pair": "a", "preferred": "tie"}, "first and second are both"),
        ({"pair": "a", "first": "x"}, {"pair": "a", "preferred": "tie"}, "'second' is None"),
        ({"pair": "a", "first": ["x"], "second": "y"}, {"pair": "a", "preferred": "tie"}, "expected a text"),
        ({"pair": ["a"], "first": "x", "second": "y"}, {"pair": "a", "preferred": "tie"}, "'pair' is"),
        ({"pair": "a", "first": "x", "second": "y"}, {"pair": {}, "preferred": "tie"}, "'pair' is {}"),
        ({"pair": "a", "first": "x", "second": "y"}, {"pair": "a", "preferred": ["tie"]}, "'preferred' is"),
    ],
)
def test_pairs_and_key(tmp_path: Path, key: Any, verdict: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_judge(lines(tmp_path / "verdicts", verdict), lines(tmp_path / "key", key))


@pytest.mark.parametrize(
    ("key", "labels", "message"),
    [
        ({"item": "a", "steps": 1}, {"item": "a", "labels": ["valid"]}, "'response' is None"),
        ({"item": "a", "response": "r", "steps": "1"}, {"item": "a", "labels": ["valid"]}, "'steps' is '1'"),
        ({"item": "a", "response": "r", "steps": True}, {"item": "a", "labels": ["valid"]}, "a whole number"),
        ({"item": "a", "response": ["r"], "steps": 1}, {"item": "a", "labels": ["valid"]}, "'response' is"),
        ({"item": "a", "response": "r", "steps": 1}, {"item": ["a"], "labels": ["valid"]}, "'item' is"),
        (
            {"item": "a", "response": "r", "steps": 2},
            {"item": "a", "labels": ["invalid", "invalid"], "first_error": 2},
            "step 1 before it is labelled 'invalid'",
        ),
    ],
)
def test_labels_and_key(tmp_path: Path, key: Any, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_labels(lines(tmp_path / "labels", labels), lines(tmp_path / "key", key))


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": [-1]}, {"token_ids": ["1"]}, {"token_ids": [[1]]}, {"token_ids": [10**30]},
        {"token_ids": [True]}, {"prompt_ids": [1.0]}, {"reward": math.nan}, {"reward": math.inf}, {"reward": 2},
        {"checkpoint": 10**30}, {"checkpoint": -1}, {"response": "\ud800"}, {"sample": -1},
    ],
)  # fmt: skip
def test_a_value_of_a_row_that_cannot_be_scored(tmp_path: Path, change: dict[str, Any]) -> None:
    name = next(iter(change))
    with pytest.raises(DataError, match=rf"rows\.jsonl:1: '{name}'.*expected"):
        jsonl_source(lines(tmp_path / "rows.jsonl", ROW | change), step=None)


@pytest.mark.parametrize("content", ["{}", "{", "[]", '{"model": 1, "chat": {}}'])
def test_a_damaged_plan_of_an_evaluation(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(DataError, match=r"plan\.json"):
        evaluation_source(tmp_path, step=0)


def test_a_part_or_a_response_without_tokens(tmp_path: Path) -> None:
    write_scores(tmp_path / "last", [Made("a", 1.0, [0.1]), Made("a", 0.0, [])])
    with pytest.raises(DataError, match="a response has no token"):
        list(read_scores(tmp_path / "last").tokens("student"))


def test_a_group_of_two_problems(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, [Made("a", 1.0, [0.1], group="g"), Made("b", 0.0, [0.2], group="g")])
    with pytest.raises(DataError, match="several checkpoints or problems"):
        token_table(scores, "student", 0)


@pytest.mark.parametrize(("key", "value"), [("time/step_s", None), ("time/step_s", math.nan), ("time/step_s", 0.0)])
def test_a_step_without_its_time(key: str, value: float | None) -> None:
    step = {
        "step": 3, "time/step_s": 2.0, "time/rollout_s": 1.0, "response/length_mean": 4.0, "count/trajectories": 2,
        "memory/peak_rss_mb": 1.0,
    }  # fmt: skip
    efficiency_audit([Run("a", "uecr", [step], ())], None)
    changed = {name: each for name, each in step.items() if name != key} | ({} if value is None else {key: value})
    with pytest.raises(DataError, match=r"step 3 of a has .*time/step_s"):
        efficiency_audit([Run("a", "uecr", [changed], ())], None)
