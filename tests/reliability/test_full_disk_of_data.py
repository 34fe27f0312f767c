"""A disk without room while problems are prepared or screened, and while a model is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.data.manifest import faults
from tests.data.made import BENCHMARK, clean_rows, deepmath_row, write_benchmark, write_jsonl
from tests.reliability.room import limited

TEXT = "File too large; make room, or write elsewhere, and run the command again"


def refused_without_room(work: Callable[[], int], bytes_a_file: int) -> str:
    """The one line of a command in a process none of whose files may grow beyond so many bytes."""
    code, said = limited(work, bytes_a_file)
    assert code == 2
    (line,) = [line for line in said.splitlines() if line.startswith("nemo-uecr: error: ")]
    return line.removeprefix("nemo-uecr: error: ")


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def preparing(tmp_path: Path, *options: str) -> Callable[[], int]:
    rows = [*clean_rows(40), deepmath_row(BENCHMARK[0]), deepmath_row(f"{BENCHMARK[1][:50]} and tell the other one.")]
    words = ["--source", str(write_jsonl(tmp_path / "s.jsonl", rows)), "--screen", str(write_benchmark(tmp_path))]
    return lambda: entry_point(["data", "prepare", *words, *options, "--workers", "1", "--out", str(tmp_path / "out")])


@pytest.mark.parametrize("bytes_a_file", [300, 2_000, 9_000])
def test_problems_that_do_not_fit_leave_nothing(tmp_path: Path, bytes_a_file: int) -> None:
    work = preparing(tmp_path)
    before = set(tmp_path.iterdir())
    line = refused_without_room(work, bytes_a_file)
    assert line == f"{tmp_path / 'out'}: {TEXT}"
    assert set(tmp_path.iterdir()) == before
    assert work() == 0
    assert faults(tmp_path / "out") == []


def test_problems_that_do_not_fit_leave_those_from_before(tmp_path: Path) -> None:
    assert preparing(tmp_path)() == 0
    before = content(tmp_path / "out")
    assert refused_without_room(preparing(tmp_path, "--sample", "30"), 3_000) == f"{tmp_path / 'out'}: {TEXT}"
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("bytes_a_file", [300, 1_500])
def test_an_evaluation_that_does_not_fit_goes_on_where_it_was(
    tmp_path: Path, bytes_a_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the plan, and of the second batch of samples: half a line is no sample, and no sample is lost."""
    for package in ("torch", "transformers", "math_verify"):
        pytest.importorskip(package)
    from nemo_uecr.evaluation import runner
    from tests.evaluation.test_runner import Scripted
    from tests.evaluation.tiny import save_tokenizer

    monkeypatch.setattr(runner, "build_engine", lambda _, __, tokens, ___: Scripted(tokens, 2, 10**9))
    save_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"eos_token_id": 257}')
    problems = write_jsonl(tmp_path / "x.jsonl", [{"id": n, "question": f"{n}?", "answer": "5"} for n in range(4)])
    words = ["evaluate", f"m={tmp_path / 'model'}", "--benchmarks", str(problems), "--samples", "4"]
    words += ["--max-tokens", "8", "--engine", "transformers", "--dtype", "float32", "--batch", "3", "--out"]
    out, whole = tmp_path / "out", tmp_path / "whole"
    line = refused_without_room(lambda: entry_point([*words, str(out)]), bytes_a_file)
    assert line.startswith(str(out / "m"))
    assert line.endswith(TEXT)
    assert not (out / "m" / "result.json").exists()
    assert entry_point([*words, str(out)]) == 0
    assert entry_point([*words, str(whole)]) == 0
    assert content(out / "m") == content(whole / "m")
