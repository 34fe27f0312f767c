"""A reader of data and a tracker from a user's file, in a whole run: recorded, resumed, and one line for a fault."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.data.benchmarks import load_benchmark
from nemo_uecr.data.sources import find_source
from nemo_uecr.errors import CheckpointError, DataError, InvariantError
from nemo_uecr.local import checkpoint, trainer
from tests.local import tiny
from tests.local.tiny import in_child, metrics, outcome, run, same
from tests.reliability.commands import refused
from tests.reliability.test_kills import die_inside

READERS = """
import json
from pathlib import Path

ROWS = [{"id": f"p{i}", "question": str(i % 4), "answer": str(i % 4), "hint": None} for i in range(6)]

def problems():
    yield from ROWS

def listed(limit=3):
    return ROWS[:limit]

def other():
    return [{"question": "How many primes are there below one hundred?", "answer": 25}]

def from_file():
    return map(json.loads, Path(__file__).with_name("rows.jsonl").read_text().splitlines())

def fails():
    yield ROWS[0]
    raise LookupError("no table\\nof that name")

def numbers():
    return [1, 2]

def asks(path): ...

def nothing(): ...

WORD = "text"
"""

TRACKER = """
import json

class Lines:
    "Appends to a file of its own, under the run's key."

    def __init__(self, folder, project, key, parameters):
        self.path = folder / "lines.jsonl"
        self._write(kind="begin", project=project, key=key, seed=parameters["run.seed"])

    def log(self, metrics, step):
        self._write(kind="step", step=step, names=sorted(metrics)[:1])

    def finish(self, failed):
        self._write(kind="end", failed=failed)

    def _write(self, **record):
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\\n")

class Fails(Lines):
    def log(self, metrics, step):
        super().log(metrics, step)
        raise OSError("no network")

class Refuses(Lines):
    def __init__(self, **given):
        raise PermissionError("no key")

class NoFinish:
    def log(self, metrics, step): ...
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the working folder, so that a run names them by relative paths."""
    monkeypatch.chdir(tmp_path)
    Path("readers.py").write_text(READERS)
    Path("own_tracker.py").write_text(TRACKER)


def test_a_run_reads_its_problems_and_benchmarks_through_functions(capsys: pytest.CaptureFixture[str]) -> None:
    own = ("data.train=readers.py:problems", "evaluation.benchmarks={a: 'readers.py:listed'}", "evaluation.every=1")
    words = tiny.train_words(tiny.assets(), Path("run"), *own)
    assert entry_point(["config", "check", *words[1:]]) == 0
    assert "data.train 6, a 3" in capsys.readouterr().out
    assert entry_point(words) == 0
    assert metrics(Path("run")) == metrics(tiny.run(Path("file"), "evaluation.every=1")), "as from a file"
    record = json.loads(Path("run/provenance.json").read_text())
    assert record["code"].keys() == {"data.train", "evaluation.benchmarks.a"}
    assert {"train", "train/rows", "benchmark a", "benchmark a/rows"} <= record["sha256"].keys()
    assert entry_point(["report", "run", "--verify"]) == 0
    model = str(max(Path("run/checkpoints").iterdir()))
    sets = ["--benchmarks", "b=readers.py:listed", "--samples", "1", "--max-tokens", "4", "--engine", "transformers"]
    assert entry_point(["evaluate", model, *sets, "--out", "e"]) == 0
    screened = ["--source", "readers.py:problems", "--screen", "x=readers.py:other", "--out", "prepared"]
    assert entry_point(["data", "prepare", *screened]) == 0


def test_a_run_goes_on_after_a_kill_and_refuses_other_rows(tmp_path: Path) -> None:
    Path("rows.jsonl").write_bytes(tiny.assets().problems.read_bytes())
    own, folder = ("train.steps=3", "checkpoint.every=1", "data.train=readers.py:from_file"), tmp_path / "killed"
    whole = outcome(run(tmp_path / "whole", *own))

    def work() -> None:
        die_inside(checkpoint, "save_pretrained", call=2)
        run(folder, *own)

    assert in_child(work)[0] == -signal.SIGKILL
    text = Path("rows.jsonl").read_text()
    Path("rows.jsonl").write_text(text.replace('"p1"', '"q1"'))
    with pytest.raises(CheckpointError, match=r"input 'train/rows': sha256 \w+ in the run, \w+ here; put the old"):
        run(folder, *own, resume=True)
    Path("rows.jsonl").write_text(text)
    Path("readers.py").write_text(READERS + "\n")
    with pytest.raises(CheckpointError, match=r"config\.yaml: data\.train: readers\.py: sha256 \w+ here"):
        run(folder, *own, resume=True)
    Path("readers.py").write_text(READERS)
    run(folder, *own, resume=True)
    assert same(outcome(folder), whole) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("readers.py:fails", "readers.py:fails fails at row 2: line 21: LookupError: no table"),
        ("readers.py:numbers", "readers.py:numbers: row 1 is a int; expected a dict"),
        ("readers.py:nothing", "readers.py:nothing fails at row 1: TypeError: 'NoneType' object is not iterable"),
        ("readers.py:asks", "readers.py:asks is a function; expected a function without arguments that yields rows"),
        ("readers.py:WORD", "data.train: readers.py:WORD is a str; expected a function without arguments that yields"),
        ("readers.py:problem", "readers.py has no 'problem'; expected a function without arguments that yields rows, "),
        ("rows.py:f", "data.train: rows.py: no such file; expected FILE.py:NAME"),
        ("owner/rows.py:f", "data.train: owner/rows.py: no such file"),
    ],
)
def test_a_reader_that_cannot_be_used_is_one_line(name: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in refused(capsys, *tiny.train_words(tiny.assets(), Path("run"), f"data.train={name}"))
    assert not Path("run").exists()


def test_a_benchmark_of_the_command_line() -> None:
    loaded = load_benchmark("mine=readers.py:listed")
    assert (loaded.name, len(loaded.problems), loaded.files) == ("mine", 3, (Path("readers.py"),))
    with pytest.raises(DataError, match=r"readers\.py has no 'lsted'"):
        find_source("readers.py:lsted", "test")


def lines(folder: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (Path(folder) / "lines.jsonl").read_text().splitlines()]


def test_a_tracker_gets_every_step_and_the_end_and_goes_on_under_one_key() -> None:
    own = ("telemetry.tracker=own_tracker.py:Lines", "checkpoint.every=1", *tiny.every()[1:3])
    run(Path("run"), *own, "train.steps=1")
    run(Path("run"), *own, "train.steps=2", resume=True)
    found = lines("run")
    assert [(line["kind"], line.get("step")) for line in found] == [
        ("begin", None),
        ("step", 1),
        ("step", 1),
        ("end", None),
        ("begin", None),
        ("step", 2),
        ("step", 2),
        ("end", None),
    ]  # fmt: skip - an evaluation is a step's, too
    assert found[0]["key"] == found[4]["key"] == Path("run/tracking.key").read_text()
    assert (found[0]["project"], found[3]["failed"]) == ("nemo-uecr", False)


def test_a_tracker_hears_that_the_run_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def violated(*_: object, **__: object) -> None:
        raise InvariantError("an identity is off")

    monkeypatch.setattr(trainer, "check_identities", violated)
    with pytest.raises(InvariantError):
        run(Path("run"), "telemetry.tracker=own_tracker.py:Lines")
    assert lines("run")[-1] == {"kind": "end", "failed": True}


def test_a_tracker_that_fails_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    run(Path("run"), "telemetry.tracker=own_tracker.py:Fails")
    assert len(metrics(Path("run"))) == 2
    assert [line["kind"] for line in lines("run")] == ["begin", "step", "end"]
    told = [message for message in caplog.messages if "own_tracker" in message]
    assert told == ["own_tracker.py:Fails fails (no network); the run goes on without it"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("own_tracker.py:Refuses", "own_tracker.py:Refuses does not start (line 28: PermissionError: no key); repair"),
        ("own_tracker.py:NoFinish", "own_tracker.py:NoFinish is a class; expected a class with log(metrics, step) and"),
        ("own_tracker.py:None_", "telemetry.tracker: own_tracker.py has no 'None_'; expected a class with log("),
        ("none.py:Lines", "telemetry.tracker: none.py: no such file; expected FILE.py:NAME"),
        ("wandb", "telemetry.tracker"),
    ],
)
def test_a_tracker_that_cannot_be_used_is_one_line(name: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in refused(capsys, *tiny.train_words(tiny.assets(), Path("run"), f"telemetry.tracker={name}"))
    assert not Path("run/metrics.jsonl").exists()
