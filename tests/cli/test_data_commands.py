"""The data and evaluation commands as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from tests.data.made import BENCHMARK, clean_rows, deepmath_row, write_benchmark, write_jsonl
from tests.data.planted_run import planted_texts
from tests.data.shared_files import FOLDER, needs_real_files

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
        (["data", "prepare", "--source", "s", "--keep-answers", "numbers", "--out", "o"], "expected some of integer"),
        (["data", "prepare", "--source", "s", "--difficulty", "7", "5", "--out", "o"], "--difficulty: got 7 5"),
        (["data", "verify", "nowhere"], "no manifest.json"),
        (["evaluate", "m", "--out", "o"], "--max-tokens"),
        (["evaluate", "--max-tokens", "8", "--out", "o"], "expected at least one model"),
        (["evaluate", "a/b=m", "--max-tokens", "8", "--out", "o"], "the label a plain name"),
        (["evaluate", "m", "--max-tokens", "8", "--top-p", "0", "--out", "o"], "--top-p. Must be > 0"),
        (["evaluate", "compare", "a", "b"], "no such file"),
        (["evaluate", "table", "nowhere"], "expected an evaluation folder or a run folder"),
    ],
)
def test_user_errors_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry_point(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(("held", "pointer"), [(False, ""), (True, "; see {}/screening/review.csv")])
def test_the_review_file_is_named_only_where_a_row_waits(held: bool, pointer: str, tmp_path: Path) -> None:
    rows = [*clean_rows(3), *([deepmath_row(" ".join(BENCHMARK[2].split()[:7]))] if held else [])]
    source, out = write_jsonl(tmp_path / "s.jsonl", rows), tmp_path / "out"
    told = run("data", "prepare", "--source", source, "--screen", write_benchmark(tmp_path), "--out", out).stdout
    [line] = [line for line in told.splitlines() if line.startswith("  held")]
    assert line == f"  held     {held:>7d}  near a benchmark problem{pointer.format(out)}"


def test_apply_reads_the_verdicts_or_says_in_one_line_why_not(tmp_path: Path) -> None:
    rows = [*clean_rows(3), deepmath_row(" ".join(BENCHMARK[2].split()[:7]))]
    source, out = write_jsonl(tmp_path / "s.jsonl", rows), tmp_path / "out"
    assert run("data", "prepare", "--source", source, "--screen", write_benchmark(tmp_path), "--out", out).stderr == ""
    filled = (out / "screening/review.csv").read_text(encoding="utf-8").replace(",,", ",Keep,", 1)
    review = tmp_path / "mine.csv"
    for content, message in (
        (filled.encode("utf-16"), "no readable CSV in UTF-8"),
        (filled.replace(",", ";").encode(), "expected row and verdict"),
        ((filled + filled.splitlines()[1] + "\n").encode(), "2 lines on row '4', 1 expected"),
    ):
        review.write_bytes(content)
        failed = run("data", "apply", out, "--review", review)
        assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (2, "", 1)
        assert message in failed.stderr
    review.write_text(filled, encoding="utf-8-sig")
    applied = run("data", "apply", out, "--review", review)
    assert (applied.returncode, applied.stdout.splitlines()[0]) == (0, "1 held rows kept, 0 dropped")


@needs_real_files
def test_every_rewritten_aime_problem_is_out_of_the_training_rows(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (FOLDER / "gsm8k_test.jsonl").read_text().splitlines()[:200]]
    clean = [deepmath_row(row["question"], row["answer"].rpartition("####")[2].strip(), topic="clean") for row in rows]
    planted = [deepmath_row(text, topic="planted") for text in planted_texts()]
    source = write_jsonl(tmp_path / "s.jsonl", [*clean, *planted])
    out = tmp_path / "out"
    screens = [FOLDER / "aime24.jsonl", FOLDER / "amc23.jsonl"]
    made = run("data", "prepare", "--source", source, "--screen", *screens, "--difficulty", "5", "8", "--out", out)
    assert made.returncode == 0, made.stderr
    topics = [json.loads(line)["topic"] for line in (out / "train.jsonl").read_text().splitlines()]
    assert topics.count("planted") == 0
    assert topics.count("clean") >= 198
