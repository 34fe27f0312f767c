"""The benchmarks at a small size: real processes, real figures."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measure import outputs_of
from benchmarks.scoring import cases, run_case
from benchmarks.step_vs_trl import table as trl_table
from benchmarks.steps import cost_lines, ratios, step_cost
from tests.local.tiny import SMALL, assets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")

TINY = [replace(case, tokens=8, vocab=500, repetitions=1) for case in cases()]


def test_a_scoring_case_measures_itself() -> None:
    dense, sharded = (
        run_case(next(case for case in TINY if case.name == name))
        for name in ("dense/ours/float32", "sharded/ours/float32")
    )
    assert dense["cpu_s"] > 0
    assert dense["peak_extra_mb"] <= 4.0
    assert max(dense["error_logp"], dense["error_entropy"]) <= 5e-6
    assert (dense["collectives"], sharded["collectives"]) == (0, 1)


def test_figures_of_a_small_batch_of_advantages(tmp_path: Path) -> None:
    """In proportion to the goal for 1,008 responses: 3 s and 1.5 GiB."""
    out = tmp_path / "figures.json"
    size = ["--responses", "64", "--tokens", "16384", "--mean-length", "5400", "--repeats", "2"]
    (output,) = outputs_of("benchmarks.advantage", [*size, "--json", str(out)], threads=1)
    assert output.startswith("[64 x 16384]")
    found = json.loads(out.read_text())
    assert 4500 < found["mean_length"] < 6500
    assert 0 < found["cpu_s"] < 1
    assert 1 <= found["peak_per_output"] <= 1536 * 2**20 / (1008 * 16384 * 4)


def record(rollout: float, update: float, *, teacher: float | None) -> dict[str, float]:
    scored = {} if teacher is None else {"time/score_teacher_s": teacher}
    return {"time/rollout_s": rollout, "time/update_s": update, "count/valid_tokens": 100.0, **scored}


def test_step_ratios_leave_out_the_first_step_and_are_taken_round_by_round() -> None:
    cost = step_cost([record(9, 9, teacher=9), *(record(t, 2, teacher=1) for t in (1, 2, 6))])
    assert cost == {"rollout": 2, "score_teacher": 1, "update": 2, "step": 5, "tokens": 100}
    slow = [step_cost([record(1, 1, teacher=None)] * 2), step_cost([record(10, 10, teacher=None)] * 2)]
    more = [step_cost([record(1, 1, teacher=1)] * 2), step_cost([record(10, 10, teacher=4)] * 2)]
    assert ratios(more, slow) == [1.2, 1.5]  # 3 / 2 and 24 / 20
    assert "1.35 [1.20, 1.50]" in "\n".join(cost_lines({"grpo": slow, "uecr": more}))


@pytest.mark.slow
def test_methods_train_on_the_same_tokens(tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    given = [str(assets().config), *SMALL, "--methods", "grpo", "uecr", "--rounds", "1", "--steps", "2"]
    (output,) = outputs_of("benchmarks.steps", [*given, "--json", str(out)], threads=1)
    rounds = json.loads(out.read_text())["rounds"]
    assert rounds["grpo"][0]["tokens"] == rounds["uecr"][0]["tokens"] > 0
    assert "score_teacher" in rounds["uecr"][0]
    assert "score_teacher" not in rounds["grpo"][0]
    assert "| uecr |" in output


def test_steps_beside_trl_are_compared_per_token_and_pair_by_pair() -> None:
    """Warm steps of 10 and 20 us a token against 30 and 40: 3 and 2 times, at twice that by the wall clock."""

    def steps(first: float, second: float, wall: float) -> list[dict[str, float]]:
        warm = [{"cpu_s": 1e-4 * each, "wall_s": 1e-4 * each * wall, "tokens": 100.0} for each in (first, second)]
        return [{"cpu_s": 9.0, "wall_s": 9.0, "tokens": 1.0}] * 2 + warm

    *_, row = trl_table({64: {"this package": steps(10, 20, 1), "TRL": steps(30, 40, 2)}})
    assert row == "| 64 | 100 | 15 | 35 | 2.50 [2.00, 3.00] | 5.00 [4.00, 6.00] |"
