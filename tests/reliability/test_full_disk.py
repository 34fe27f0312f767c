"""A disk that is full at each write of a command: one line, nothing half-written, and afterwards the same files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from tests.local import tiny
from tests.local.tiny import in_child
from tests.reliability.room import limited, with_room
from tests.report.conftest import Story, write_run

#: What a file of a library says that fails for its size, as far as it says anything of the system's.
NO_ROOM = (os.strerror(errno.EFBIG), "os error 27")


def errors_of(words: Sequence[str], bytes_a_file: int) -> tuple[int, list[str]]:
    """A command in a process whose files may have so many bytes: its code, and its lines of error."""
    code, text = limited(lambda: entry_point(words), bytes_a_file)
    return code, [line for line in text.splitlines() if "nemo-uecr: error: " in line or "Error" in line]


def files(folder: Path) -> dict[str, int]:
    """Every file that a reader would see, and its size; a lock names its process, in as many digits as that has."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    found = (path for path in found if path.name != "run.lock")
    return {str(path.relative_to(folder)): path.stat().st_size for path in found}


def is_whole(path: Path, size: int) -> bool:
    """Numbers of seconds make the size of JSON vary; logs grow line by line."""
    content = path.read_bytes()
    if path.suffix == ".jsonl":
        return content[-1:] in (b"", b"\n")
    if path.suffix == ".json":
        return isinstance(json.loads(content), dict)
    return len(content) == size


def fails_at_each_write(words: Callable[[Path], list[str]], tmp_path: Path, *, reset: Callable[[Path], None]) -> None:
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
        code, lines = errors_of(words(folder), size - 1)
        assert (code, len(lines)) == (2, 1), (written, size, lines)
        assert any(text in lines[0] for text in NO_ROOM), lines
        assert str(folder) in lines[0], lines
        for name in files(folder).keys() - before.keys():
            assert is_whole(folder / name, written[name]), (name, size)
        assert list(folder.rglob(".*tmp")) == []
        assert entry_point(words(folder)) == 0
        assert files(folder).keys() == files(whole).keys()


def emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def test_an_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    rows = [{"id": f"p{n}", "question": str(n), "answer": str(n)} for n in range(2)]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["evaluate", str(tiny.assets().student), "--benchmarks", str(tmp_path / "set.jsonl"), "--samples", "2"]
    words += ["--batch", "2", "--max-tokens", "6", "--engine", "transformers", "--dtype", "float32", "--out"]
    fails_at_each_write(lambda folder: [*words, str(folder)], tmp_path, reset=emptied)


def test_scores_for_the_audits(tmp_path: Path) -> None:
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
    fails_at_each_write(lambda folder: [*words, str(folder / "scores")], tmp_path, reset=emptied)


def a_run(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    write_run(folder, Story(steps=4, planned=4, evaluations=(0, 4), batches=(1,), problems=2, samples=2))


def test_an_audit(tmp_path: Path) -> None:
    """It asks for the seconds of a step, which a run has that has trained."""
    pytest.importorskip("matplotlib", reason="figures are drawn with matplotlib (extra 'plots')")
    pytest.importorskip("pyarrow", reason="audits ask for the extra 'data'")
    trained = tiny.run(tmp_path / "trained")

    def reset(folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(trained, folder)

    fails_at_each_write(lambda folder: ["audit", "efficiency", str(folder)], tmp_path, reset=reset)


def test_a_report(tmp_path: Path) -> None:
    fails_at_each_write(lambda folder: ["report", str(folder)], tmp_path, reset=a_run)


def test_an_archive_and_back(tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    fails_at_each_write(
        lambda folder: ["pack", str(tmp_path / "run"), str(folder / "a.tar.gz")], tmp_path, reset=emptied
    )
    fails_at_each_write(
        lambda folder: ["unpack", str(tmp_path / "whole" / "a.tar.gz"), str(folder / "new")],
        tmp_path / "back",
        reset=emptied,
    )


def test_a_model_of_a_study(tmp_path: Path) -> None:
    """Its weights are written by a library with an error of its own, in a process of its own; none is there half."""
    for package in ("scipy", "matplotlib"):
        pytest.importorskip(package, reason="the study extra is not installed")
    from tests.study.made import study_file

    code, lines = errors_of(["study", str(study_file(tmp_path))], 100_000)
    assert (code, len(lines)) == (2, 1), lines
    models = tmp_path / "study" / "task" / "models"
    assert lines[0].startswith(f"nemo-uecr: error: {models}/"), lines
    assert lines[0].endswith("File too large; make room, or write elsewhere, and run the command again"), lines
    assert ".tmp" not in lines[0].removeprefix(f"nemo-uecr: error: {models}/")
    assert [path for path in models.iterdir() if not path.name.startswith(".")] == []


def test_a_model_of_the_demo(tmp_path: Path) -> None:
    """The process that teaches it says why in one line, which its parent shows."""
    from nemo_uecr.demo import prepare
    from nemo_uecr.demo.recipe import BENCH_FOLDER, RECIPE_FILE, recipe_to_json
    from tests.demo.test_assets import tiny as recipe

    (tmp_path / BENCH_FOLDER).mkdir()
    (tmp_path / RECIPE_FILE).write_text(recipe_to_json(recipe(1)))
    said = in_child(lambda: with_room(3_000, lambda: prepare.main([str(tmp_path), "student", "0"])))[1]
    assert said == f"SystemExit: student: {tmp_path / 'student'} cannot be written: File too large"


def test_the_events_of_tensorboard(tmp_path: Path) -> None:
    """They take more room than the metrics. A thread of the library writes them, whose traceback would say no more."""
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    own = (tiny.assets(), folder, "telemetry.tensorboard=on", "train.steps=6")
    metrics = (tiny.run(tmp_path / "whole", "train.steps=6") / "metrics.jsonl").stat().st_size

    def command() -> int:
        threading.excepthook = threading.__excepthook__  # not pytest's, which shows nothing
        return entry_point(tiny.train_words(*own))

    code, said = limited(command, metrics)
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith(f"nemo-uecr: error: cannot write {folder / 'tensorboard'}: File too large; "), said
    assert entry_point([*tiny.train_words(*own), "--resume"]) == 0


def test_a_figure_of_a_study(tmp_path: Path) -> None:
    """The other files of a study go through the same writer; a figure is drawn by a library."""
    pytest.importorskip("matplotlib", reason="figures are drawn with matplotlib (extra 'plots')")
    from nemo_uecr.study.figures import draw_costs
    from nemo_uecr.study.summary import Cost

    def draw() -> None:
        draw_costs(tmp_path, [Cost(arm="grpo", variant="one", step_seconds=1.0, seconds={"update": 1.0}, ratio=None)])

    draw()
    before = files(tmp_path)
    assert len(before) == 2
    assert in_child(lambda: with_room(min(before.values()) - 1, draw))[1].startswith("OSError: [Errno 27]")
    assert files(tmp_path) == before
    assert list(tmp_path.rglob(".*tmp")) == []
