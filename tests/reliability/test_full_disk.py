"""A disk that is full at each write of a command: one line, nothing half-written, and afterwards the same files."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch

from nemo_uecr.cli.main import entry_point
from nemo_uecr.data.manifest import faults
from tests.data.made import BENCHMARK, clean_rows, deepmath_row, write_benchmark, write_jsonl
from tests.local import tiny
from tests.local.tiny import in_child, outcome, same
from tests.reliability.room import limited, with_room
from tests.report.conftest import Story, write_run

#: What a file of a library says that fails for its size, as far as it says anything of the system's.
NO_ROOM = (os.strerror(errno.EFBIG), "os error 27")
Words = Callable[[Path], list[str]]


def files(folder: Path) -> dict[str, int]:
    """Every file that a reader would see, and its size."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.stat().st_size for path in found if path.name != "run.lock"}


def is_whole(path: Path, size: int) -> bool:
    """Numbers of seconds make the size of JSON vary; logs grow line by line."""
    content = path.read_bytes()
    if path.suffix == ".jsonl":
        return content[-1:] in (b"", b"\n")
    if path.suffix == ".json":
        return isinstance(json.loads(content), dict)
    return len(content) == size


def fails_at_each_write(words: Words, tmp_path: Path, *, reset: Callable[[Path], None]) -> None:
    """Files one byte too small for each of what the command writes, one after the other, then room again.

    Args:
        words: the command that writes into a folder.
        tmp_path: where.
        reset: brings a folder back to what it was before the command.
    """
    whole = tmp_path / "whole"
    reset(whole)
    before = files(whole)
    assert entry_point(words(whole)) == 0
    written = {name: size for name, size in files(whole).items() if before.get(name) != size}
    assert written
    for size in sorted(set(written.values()) - {0}):
        folder = tmp_path / "limited"
        reset(folder)
        code, text = limited(lambda folder=folder: entry_point(words(folder)), size - 1)  # type: ignore[misc]
        lines = [line for line in text.splitlines() if "nemo-uecr: error: " in line or "Error" in line]
        assert (code, len(lines)) == (2, 1), (written, size, lines)
        assert any(reason in lines[0] for reason in NO_ROOM), lines
        assert str(folder) in lines[0], lines
        for name in files(folder).keys() - before.keys():
            assert is_whole(folder / name, written[name]), (name, size)
        assert list(folder.rglob(".*tmp")) == []
        assert entry_point(words(folder)) == 0
        assert files(folder).keys() == files(whole).keys()


def emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def a_run(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    write_run(folder, Story(steps=4, planned=4, evaluations=(0, 4), batches=(1,), problems=2, samples=2))


def evaluating(tmp_path: Path) -> Words:
    pytest.importorskip("math_verify")
    rows = [{"id": f"p{n}", "question": str(n), "answer": str(n)} for n in range(2)]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["evaluate", str(tiny.assets().student), "--benchmarks", str(tmp_path / "set.jsonl"), "--samples", "2"]
    words += ["--batch", "2", "--max-tokens", "6", "--engine", "transformers", "--dtype", "float32", "--out"]
    return lambda folder: [*words, str(folder)]


def scoring(tmp_path: Path) -> Words:
    pytest.importorskip("pyarrow", reason="scores are written with pyarrow (extra 'data')")
    rows = [
        {"problem": f"p{n}", "checkpoint": 0, "prompt": "1+1", "response": r"\boxed{2}", "answer": "2",
         "question": "1+1", "truncated": False}
        for n in range(4)
    ]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = tiny.assets()
    words = ["score", str(tmp_path / "rows.jsonl"), "--teacher", str(own.teacher), "--student", str(own.student)]
    words += ["--dtype", "float32", "--device", "cpu", "--part", "2", "--out"]
    return lambda folder: [*words, str(folder / "scores")]


def preparing(tmp_path: Path) -> Words:
    rows = [*clean_rows(40), deepmath_row(BENCHMARK[0]), deepmath_row(f"{BENCHMARK[1][:50]} and tell the other one.")]
    source, benchmark = write_jsonl(tmp_path / "s.jsonl", rows), write_benchmark(tmp_path)
    words = ["data", "prepare", "--source", str(source), "--screen", str(benchmark), "--workers", "1", "--out"]
    return lambda folder: [*words, str(folder / "out")]


def packing(tmp_path: Path) -> Words:
    a_run(tmp_path / "run")
    return lambda folder: ["pack", str(tmp_path / "run"), str(folder / "a.tar.gz")]


def unpacking(tmp_path: Path) -> Words:
    assert entry_point([*packing(tmp_path)(tmp_path)]) == 0
    return lambda folder: ["unpack", str(tmp_path / "a.tar.gz"), str(folder / "new")]


@pytest.mark.slow
@pytest.mark.parametrize("command", [evaluating, scoring, preparing, packing, unpacking])
def test_a_command(tmp_path: Path, command: Callable[[Path], Words]) -> None:
    fails_at_each_write(command(tmp_path), tmp_path / "there", reset=emptied)


@pytest.mark.slow
def test_a_report(tmp_path: Path) -> None:
    fails_at_each_write(lambda folder: ["report", str(folder)], tmp_path, reset=a_run)


def test_problems_that_do_not_fit_leave_those_from_before(tmp_path: Path) -> None:
    words = preparing(tmp_path)(tmp_path)
    assert entry_point(words) == 0
    before = files(tmp_path / "out")
    code, text = limited(lambda: entry_point([*words, "--sample", "30"]), 3_000)
    assert (code, text.count("nemo-uecr: error: ")) == (2, 1)
    assert f"{tmp_path / 'out'}: {NO_ROOM[0]}" in text
    assert files(tmp_path / "out") == before
    assert faults(tmp_path / "out") == []


@pytest.mark.parametrize(
    "bytes_a_file", [2_000, *(pytest.param(size, marks=pytest.mark.slow) for size in (50, 400, 9_000, 30_000))]
)
def test_a_run(tmp_path: Path, bytes_a_file: int) -> None:
    """Whichever file does not fit: one line, files that are whole or absent, and the same run afterwards."""
    busy = ("checkpoint.every=1", "telemetry.save_batch_every=1", "evaluation.every=1")
    busy += (f"evaluation.benchmarks={{a: {tiny.assets().problems}}}",)
    folder = tmp_path / "run"
    code, text = in_child(lambda: with_room(bytes_a_file, lambda: tiny.run(folder, *busy) and None))
    assert code == 2, text
    assert any(reason in text for reason in NO_ROOM), text
    for path in folder.rglob("*.json*"):
        assert is_whole(path, 0), path
    for path in folder.rglob("*.safetensors"):
        assert safetensors.torch.load_file(path), path
    assert list(folder.rglob(".*tmp")) == []
    tiny.run(folder, *busy, resume=True)
    assert same(outcome(folder), outcome(tiny.run(tmp_path / "whole", *busy))) == []
