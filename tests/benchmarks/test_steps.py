"""Cost of a step: medians by hand, and two real runs that take turns."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import steps as bench_step
from benchmarks.steps import ratio, step_cost
from tests.local.tiny import SMALL, assets


def record(rollout: float, update: float, *, teacher: float | None) -> dict[str, float]:
    scored = {} if teacher is None else {"time/score_teacher_s": teacher}
    return {"time/rollout_s": rollout, "time/update_s": update, "count/valid_tokens": 100.0, **scored}


def test_first_step_is_left_out_and_medians_are_taken() -> None:
    cost = step_cost([record(9, 9, teacher=9), *(record(t, 2, teacher=1) for t in (1, 2, 6))])
    assert cost.phases == {"rollout": 2, "score_teacher": 1, "update": 2}
    assert (cost.total, cost.tokens) == (5, 100)


def test_ratio_is_taken_round_by_round() -> None:
    slow = [step_cost([record(1, 1, teacher=None)] * 2), step_cost([record(10, 10, teacher=None)] * 2)]
    more = [step_cost([record(1, 1, teacher=1)] * 2), step_cost([record(10, 10, teacher=4)] * 2)]
    # rounds: 3 / 2 = 1.5 and 24 / 20 = 1.2; the median of two is their mean
    found = ratio(more, slow)
    assert (found.low, found.high) == (1.2, 1.5)
    assert found.median == pytest.approx(1.35)


@pytest.mark.slow
def test_methods_train_on_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "steps.json"
    given = [str(assets().config), *SMALL, "--methods", "grpo", "uecr", "--rounds", "1", "--steps", "2"]
    parser = argparse.ArgumentParser()
    bench_step.add_arguments(parser)
    assert bench_step.run(parser.parse_intermixed_args([*given, "--json", str(out)])) == 0
    rounds = json.loads(out.read_text())["rounds"]
    assert rounds["grpo"][0]["tokens"] == rounds["uecr"][0]["tokens"] > 0
    assert "score_teacher" in rounds["uecr"][0]["phases"]
    assert "score_teacher" not in rounds["grpo"][0]["phases"]
    assert "| uecr |" in capsys.readouterr().out
