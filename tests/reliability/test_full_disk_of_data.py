"""A disk without room while problems are prepared or screened, and while a model is evaluated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.data.manifest import faults
from tests.data.made import BENCHMARK, clean_rows, deepmath_row, prepare_folder, write_benchmark, write_jsonl
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


@pytest.mark.parametrize("room", [300, 2_000, None])
def test_verdicts_that_do_not_fit_leave_the_folder_as_it_was(tmp_path: Path, room: int | None) -> None:
    """Neither the copies of its files fit, nor the kept rows with one more among them."""
    out = tmp_path / "out"
    near = deepmath_row(" ".join(BENCHMARK[2].split()[:7]))
    prepare_folder(write_jsonl(tmp_path / "s.jsonl", [*clean_rows(40), near]), out, write_benchmark(tmp_path))
    review = out / "screening" / "review.csv"
    review.write_text(review.read_text().replace(",,", ",keep,", 1))
    before, beside = content(out), set(tmp_path.iterdir())
    largest = len(before["train.jsonl"])
    assert largest == max(map(len, before.values()))
    words = ["data", "apply", str(out)]
    assert refused_without_room(lambda: entry_point(words), room or largest) == f"{out}: {TEXT}"
    assert content(out) == before
    assert set(tmp_path.iterdir()) == beside
    assert entry_point(words) == 0
    assert faults(out) == []


@pytest.mark.parametrize("bytes_a_file", [100, 3_000])
def test_a_screening_that_does_not_fit_goes_on_where_it_was(
    tmp_path: Path, bytes_a_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is nearest to each row, and of the rows that stay."""
    pytest.importorskip("torch")
    from nemo_uecr.data import embedding_stage
    from tests.data.test_embedding import CountingEncoder

    monkeypatch.setattr(embedding_stage, "load_encoder", lambda _: CountingEncoder(10**9))
    source, benchmark = write_jsonl(tmp_path / "s.jsonl", clean_rows(40)), write_benchmark(tmp_path)
    out, whole = (prepare_folder(source, tmp_path / name, benchmark) for name in ("out", "whole"))
    before = content(out)
    line = refused_without_room(lambda: entry_point(["data", "screen", str(out), "--model", "m"]), bytes_a_file)
    assert line.startswith(str(out))
    assert line.endswith(TEXT)
    assert {name: text for name, text in content(out).items() if not name.startswith(".")} == before
    for folder in (out, whole):
        assert entry_point(["data", "screen", str(folder), "--model", "m"]) == 0
    assert content(out) == content(whole)


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
