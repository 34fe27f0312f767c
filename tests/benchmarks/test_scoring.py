from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks import scoring
from nemo_uecr.errors import UecrError

TINY = scoring.Sizes(tokens=8, sharded_tokens=8, vocab=500, hidden=16, rounds=1, repetitions=1)


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


def test_absent_rivals_are_null_and_the_rest_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seconds = {"ours": 1.0, "plain": 6.0, "product": 0.9}

    def measured(case: scoring.Case) -> dict[str, object]:
        rival = case.job.case.split("/")[1]
        if rival not in seconds:
            return {"absent": f"{rival} is not installed"}
        return {
            **{"cpu_s": seconds[rival], "wall_s": seconds[rival], "peak_extra_mb": 0.5, "native": True},
            **{"error_logp": 1e-6, "error_entropy": 2e-6, "collectives": int(case.ranks > 1)},
            "collective_bytes": 16 * case.job.tokens if case.ranks > 1 else 0,
        }

    monkeypatch.setattr(scoring, "run_case", measured)
    out = tmp_path / "scoring.json"
    parser = argparse.ArgumentParser()
    scoring.add_arguments(parser)
    assert scoring.run(parser.parse_args(["--quick", "--json", str(out)])) == 0
    written = json.loads(out.read_text())
    assert written["ratios"]["naive_fp32"] == 6.0
    assert written["ratios"]["trl"] is None
    assert written["ratios_fused"]["ours_over_bare_product"] == pytest.approx(1 / 0.9)
    assert (written["collectives"], written["bytes_per_token"], written["peak_extra_mb"]) == (1, 16, 0.5)
