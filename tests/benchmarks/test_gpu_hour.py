"""The hour on a GPU, on a CPU: every part at a tiny size, and what becomes of a part that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_hour import RUNS, Part, run_parts, tables
from benchmarks.measure import ROOT


def test_a_part_that_fails_or_hangs_is_reported_and_the_others_run(tmp_path: Path) -> None:
    write = (
        f"import json, pathlib; pathlib.Path({str(tmp_path)!r}, 'good.json').write_text(json.dumps({{'GB/s': 2.5}}))"
    )
    parts = [
        Part("bad", "Rates", ("-c", "print('begins'); raise ValueError('no such kernel')")),
        Part("slow", "Rates", ("-c", "import time; time.sleep(60)"), limit=0.5),
        Part("absent", "Rates", ("-c", ""), needs=("no_such_package",)),
        Part("cuda", "Rates", ("-c", ""), on_cpu=False),
        Part("good", "Rates", ("-c", write)),
    ]
    found = run_parts(parts, tmp_path, "cpu", 60.0)
    assert [found[part.name]["status"] for part in parts] == ["FAILED", "FAILED", "SKIPPED", "SKIPPED", "OK"]
    text = tables(parts, found)
    assert "| good | 2.5 |" in text
    assert "- bad: FAILED, exit code 1: ValueError: no such kernel" in text
    assert "- absent: SKIPPED, without no_such_package" in text
    assert json.loads((tmp_path / "results.json").read_text()) == found
    assert run_parts(parts[:1], tmp_path, "cpu", 0.0)["bad"]["reason"] == "no time left"


@pytest.mark.slow
def test_every_part_runs_without_a_gpu(tmp_path: Path) -> None:
    """Peaks on a CPU hold Python and torch too, so they only have to be there."""
    command = ["bash", str(ROOT / "tools" / "gpu_hour.sh"), "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    found = json.loads((tmp_path / "results.json").read_text())
    assert {name: one for name, one in found.items() if one["status"] == "FAILED"} == {}, done.stderr
    assert done.returncode == 0
    for name in ("micro-batch 1", "checkpointing", "teacher offloaded", "all offloaded", "float32"):
        row = found[name]["rows"][name]
        assert row["peak / plan"] == pytest.approx(row["peak GiB"] / row["plan GiB"])
        assert row["peak GiB"] > 0
        assert row["ratio is 1"] == 1.0
        assert row["moving s"] > 0 or "offload" not in name
    assert set(RUNS) <= set(found)
    assert found["kernels"]["reason"] == "without a CUDA device"
    assert found["rivals"]["rows"]["dense/plain/bfloat16"]["wall_s"] > 0
    assert found["offload"]["rows"]["offload"]["back GB/s"] > 0
    assert "| micro-batch 1 |" in (tmp_path / "table.md").read_text()
    assert not list((tmp_path / "runs").rglob("*.safetensors"))
