"""The data and evaluation commands as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from tests.data.made import BENCHMARK, clean_rows, deepmath_row, write_benchmark, write_jsonl

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nemo_uecr", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_prepare_verify_and_a_fault(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "s.jsonl", [*clean_rows(5), deepmath_row(BENCHMARK[0])])
    out = tmp_path / "out"
    made = run("data", "prepare", "--source", source, "--screen", write_benchmark(tmp_path), "--difficulty", "5", "7",
               "--out", out)  # fmt: skip
    assert (made.returncode, made.stderr) == (0, "")
    assert "removed        1  screen_exact" in made.stdout
    assert "kept           5" in made.stdout
    checked = run("data", "verify", out, "--source", source)
    assert (checked.returncode, checked.stdout.splitlines()[-1][-8:]) == (0, "0 faults")
    (out / "train.jsonl").write_text("", encoding="utf-8")
    broken = run("data", "verify", out)
    assert broken.returncode == 1
    assert "fault: train.jsonl: changed" in broken.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "prepare", "--source", "nowhere.jsonl", "--out", "o"], "nowhere.jsonl: no such file"),
        (["data", "prepare", "--source", "s", "--difficulty", "7", "5", "--out", "o"], "--difficulty: got 7 5"),
        (["data", "verify", "nowhere"], "no manifest.json"),
        (["evaluate", "m", "--out", "o"], "--max-tokens"),
        (["evaluate", "compare", "a", "b"], "no such file"),
    ],
)
def test_user_errors_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry_point(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_apply_reads_the_verdicts(tmp_path: Path) -> None:
    rows = [*clean_rows(3), deepmath_row(" ".join(BENCHMARK[2].split()[:7]))]
    source, out = write_jsonl(tmp_path / "s.jsonl", rows), tmp_path / "out"
    assert run("data", "prepare", "--source", source, "--screen", write_benchmark(tmp_path), "--out", out).stderr == ""
    filled = (out / "screening/review.csv").read_text(encoding="utf-8").replace(",,", ",Keep,", 1)
    review = tmp_path / "mine.csv"
    review.write_text(filled, encoding="utf-8-sig")
    applied = run("data", "apply", out, "--review", review)
    assert (applied.returncode, applied.stdout.splitlines()[0]) == (0, "1 held rows kept, 0 dropped")
