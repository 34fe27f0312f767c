from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from pathlib import Path

import pytest

from benchmarks import scoring
from nemo_uecr.errors import UecrError

TINY = scoring.Sizes(tokens=8, sharded_tokens=8, vocab=500, hidden=16, rounds=1, repetitions=1)


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    scoring.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("name", ["dense/ours/float32", "sharded/ours/float32", "fused/ours@/bfloat16"])
def test_a_case_measures_itself(name: str) -> None:
    case = next(case for case in scoring.cases(TINY) if case.name == name)
    result = scoring.run_case(case)
    assert result["cpu_s"] > 0
    assert result["peak_extra_mb"] is None or result["peak_extra_mb"] <= 4.0
    if name == "dense/ours/float32":
        assert max(result["error_logp"], result["error_entropy"]) <= 5e-6
        assert result["collectives"] == 0
    if name == "sharded/ours/float32":
        # 8 tokens of 16 bytes in one collective
        assert (result["collectives"], result["collective_bytes"]) == (1, 8 * 16)


def test_absent_rivals_are_null_and_the_rest_stands(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def measured(case: scoring.Case) -> dict[str, object]:
        rival = case.job.case.split("/")[1]
        if rival not in ("ours", "plain", "product"):
            return {"absent": f"{rival} is not installed"}
        seconds = {"ours": 1.0, "plain": 6.0, "product": 0.9}[rival]
        return {
            "cpu_s": seconds,
            "wall_s": seconds,
            "peak_extra_mb": 0.5,
            "error_logp": 1e-6,
            "error_entropy": 2e-6,
            "collectives": int(case.ranks > 1),
            "collective_bytes": 16 * case.job.tokens if case.ranks > 1 else 0,
            "native": True,
        }

    monkeypatch.setattr(scoring, "run_case", measured)
    out = tmp_path / "scoring.json"
    with caplog.at_level(logging.INFO):
        assert scoring.run(parsed("--quick", "--json", str(out))) == 0
    said = [" ".join(message.split()) for message in caplog.messages]
    assert "round 1 dense/plain/float32 6 s" in said
    assert "round 1 dense/trl@128/float32 trl is not installed" in said
    written = json.loads(out.read_text())
    assert written["ratios"]["naive_fp32"] == 6.0
    for rival in ("trl", "verl", "nemo_rl_tp2_chunk1024", "nemo_rl_tp2_best"):
        assert written["ratios"][rival] is None
    assert written["ratios_fused"]["ours_over_bare_product"] == pytest.approx(1 / 0.9)
    assert (written["collectives"], written["bytes_per_token"], written["peak_extra_mb"]) == (1, 16, 0.5)
    assert set(written) >= {"max_error", "versions"}
    assert "| dense/trl@128/float32 | absent: trl is not installed |" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["scoring.json"]


def test_a_fault_of_our_own_is_no_absence() -> None:
    case = next(case for case in scoring.cases(TINY) if case.name == "dense/ours/float32")
    broken = scoring.Case(case.name, dataclasses.replace(case.job, dtype="float99"), 1)
    with pytest.raises(UecrError, match="dense/ours/float32 failed"):
        scoring.run_case(broken)


def test_the_best_setting_of_a_rival_counts() -> None:
    results = {
        "sharded/nemo_rl@1024/float32": {"cpu_s": 8.0},
        "sharded/nemo_rl@16/float32": {"cpu_s": 5.0},
        "sharded/nemo_rl@16/bfloat16": {"cpu_s": 1.0},
    }
    assert scoring.best(results, "sharded/nemo_rl@", "float32") == {"cpu_s": 5.0}


def test_rounds_keep_the_least_times_and_the_largest_memory() -> None:
    first = {"cpu_s": 2.0, "wall_s": 3.0, "peak_extra_mb": 1.0, "error_logp": None}
    second = {"cpu_s": 1.5, "wall_s": 4.0, "peak_extra_mb": 2.0, "error_logp": None}
    assert scoring.least_of(first, second) == {
        "cpu_s": 1.5,
        "wall_s": 3.0,
        "peak_extra_mb": 2.0,
        "error_logp": None,
    }
