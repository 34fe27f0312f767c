"""The benchmark of the advantages at a small size: real processes, real figures."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from benchmarks import advantage as bench_advantage


def bench(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    bench_advantage.add_arguments(parser)
    return bench_advantage.run(parser.parse_args(words))


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_figures_of_a_small_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    size = ["--responses", "64", "--tokens", "2048", "--mean-length", "600", "--repeats", "2"]
    assert bench([*size, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["shape"] == [64, 2048]
    assert 450 < found["mean_length"] < 750
    for case in ("blocked", "plain"):
        assert 0 < found["cases"][case]["cpu_s"] < 1
        assert found["cases"][case]["wall_s"] > 0
    assert found["ratios"]["plain_cpu"] == found["cases"]["plain"]["cpu_s"] / found["cases"]["blocked"]["cpu_s"]
    assert "[64 x 2048] advantages" in capsys.readouterr().out


def test_both_cases_compute_the_same() -> None:
    from benchmarks.advantage import blocked, made_batch, plain

    batch = made_batch(64, 300, 80)
    assert float((blocked(batch) - plain(batch)).abs().max()) < 1e-4
    assert float(blocked(batch).abs().max()) > 0.5
