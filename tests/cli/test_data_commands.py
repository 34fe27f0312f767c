"""The data commands from prepared rows to verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from tests.data.made import BENCHMARK, clean_rows, deepmath_row, write_benchmark, write_jsonl


def test_prepare_verify_and_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(write_jsonl(tmp_path / "s.jsonl", [*clean_rows(5), deepmath_row(BENCHMARK[0])]))
    out, screen = tmp_path / "out", str(write_benchmark(tmp_path))
    words = ["data", "prepare", "--source", source, "--screen", screen, "--difficulty", "5", "7", "--out", str(out)]
    assert entry_point(words) == 0
    told = capsys.readouterr().out
    assert "removed        1  screen_exact" in told
    assert "kept           5" in told
    assert entry_point(["data", "verify", str(out), "--source", source]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("0 faults")
    (out / "train.jsonl").write_text("", encoding="utf-8")
    assert entry_point(["data", "verify", str(out)]) == 1
    assert "fault: train.jsonl: changed" in capsys.readouterr().out


def test_apply_reads_the_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*clean_rows(3), deepmath_row(" ".join(BENCHMARK[2].split()[:7]))]
    source, out = write_jsonl(tmp_path / "s.jsonl", rows), tmp_path / "out"
    screen = str(write_benchmark(tmp_path))
    assert entry_point(["data", "prepare", "--source", str(source), "--screen", screen, "--out", str(out)]) == 0
    filled = (out / "screening/review.csv").read_text(encoding="utf-8").replace(",,", ",Keep,", 1)
    review = tmp_path / "mine.csv"
    review.write_text(filled, encoding="utf-8-sig")
    capsys.readouterr()
    assert entry_point(["data", "apply", str(out), "--review", str(review)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "1 held rows kept, 0 dropped"
