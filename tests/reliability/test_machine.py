"""A clock that jumps, a home folder that cannot be written, a machine without network, a file system that is full."""

from __future__ import annotations

import ast
import errno
import json
import os
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
import safetensors.torch

from nemo_uecr.data.hub import only_here
from nemo_uecr.scoring import native
from tests.local import tiny
from tests.local.tiny import in_child, outcome, same

PACKAGE = Path(__file__).resolve().parents[2] / "nemo_uecr"
OF_DAY = {"time": ("time", "time_ns"), "datetime": ("now", "utcnow", "today")}
#: Where the time of day is meant: a stamp for a server, and the end of a Slurm job.
WALL_CLOCK = {"telemetry/clients.py", "stopping.py"}


def test_a_clock_that_runs_backwards_changes_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = (f"evaluation.benchmarks={{a: {tiny.assets().problems}}}", "evaluation.every=1", "checkpoint.every=1")
    whole = outcome(tiny.run(tmp_path / "whole", *evaluated))
    now = [2e9]

    def backwards() -> float:
        now[0] -= 3600.0
        return now[0]

    monkeypatch.setattr(time, "time", backwards)
    folder = tiny.run(tmp_path / "run", *evaluated)
    monkeypatch.undo()
    assert same(outcome(folder), whole) == []
    for record in tiny.records(folder / "metrics.jsonl"):
        seconds = {name: value for name, value in record.items() if name.startswith(("time/", "throughput/"))}
        assert seconds
        assert all(value >= 0 for value in seconds.values()), seconds
    evaluations = tiny.records(folder / "evaluation.jsonl")
    assert [record["step"] for record in evaluations] == [1, 2]
    assert all(record["seconds"] >= 0 for record in evaluations), evaluations


def test_no_duration_is_taken_from_the_time_of_day() -> None:
    """Durations and deadlines come from clocks that only go forward."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if any(map(reads_the_time_of_day, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == WALL_CLOCK


def reads_the_time_of_day(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):  # under another name it would not be seen
        return any(each.name == "time" and each.asname is not None for each in node.names)
    if isinstance(node, ast.ImportFrom):  # the same
        of_time = node.module == "time" and any(each.name in OF_DAY["time"] for each in node.names)
        return of_time or (node.module == "datetime" and any(each.asname is not None for each in node.names))
    if not isinstance(node, ast.Attribute):
        return False
    return node.attr in OF_DAY.get(ast.unparse(node.value).split(".")[-1], ())


@pytest.mark.parametrize(
    "text",
    [
        "time.time()", "time.time_ns", "datetime.now()", "datetime.datetime.utcnow()", "import time as clock",
        "from time import time as now", "from datetime import datetime as when",
    ],
)  # fmt: skip
def test_the_search_sees_every_way_to_the_time_of_day(text: str) -> None:
    assert any(map(reads_the_time_of_day, ast.walk(ast.parse(text))))


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled code has no cache there, so torch takes its place; nothing else wants the home folder."""
    home = tmp_path / "home"
    home.write_text("a file where the home folder should be: even root cannot write into it")
    for name in ("NEMO_UECR_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))

    def work() -> None:
        native._library.cache_clear()
        assert native._library() is None
        tiny.run(tmp_path / "run")

    assert in_child(work) == (0, "")
    assert len(tiny.metrics(tmp_path / "run")) == 2


def test_a_run_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With models and data in folders no connection is tried, whether or not a folder's name could be one of the hub's.

    The switch that says that there is no hub is off: with it the hub's library tries nothing by itself.
    """
    import huggingface_hub
    from transformers.utils import hub as transformers_hub

    tried: list[object] = []

    def connect(*where: Any, **_: Any) -> NoReturn:
        tried.append(where)
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    assets = tiny.assets()
    monkeypatch.chdir(assets.folder.parent)
    models = [f"{role}.model_name={assets.folder.name}/{role}" for role in ("student", "teacher")]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transformers_hub, "is_offline_mode", lambda: False)
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    assert only_here("owner/absent")
    assert tried, "the test would not see a question to the hub"
    tried.clear()
    evaluated = (f"evaluation.benchmarks={{a: {assets.problems}}}", "evaluation.every=1")
    for folder, named in ((tmp_path / "absolute", []), (tmp_path / "relative", models)):
        tiny.run(folder, *evaluated, *named)
        assert len(tiny.metrics(folder)) == 2
    assert tried == []


@pytest.mark.parametrize("bytes_a_file", [50, 400, 2_000, 9_000, 30_000])
def test_a_disk_that_is_full_at_any_write(tmp_path: Path, bytes_a_file: int) -> None:
    """Whichever file does not fit: one line, files that are whole or absent, and the same run afterwards."""
    busy = ("checkpoint.every=1", "telemetry.save_batch_every=1", "evaluation.every=1")
    busy += (f"evaluation.benchmarks={{a: {tiny.assets().problems}}}",)
    folder = tmp_path / "run"

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, resource.RLIM_INFINITY))
        tiny.run(folder, *busy)

    code, text = in_child(work)
    assert code == 2, text
    assert "\n" not in text
    assert os.strerror(errno.EFBIG) in text or "os error 27" in text
    for path in folder.rglob("*.jsonl"):
        assert path.read_bytes()[-1:] in (b"", b"\n"), path
    for path in folder.rglob("*.json"):
        assert json.loads(path.read_text()), path
    for path in folder.rglob("*.safetensors"):
        assert safetensors.torch.load_file(path), path
    assert list(folder.rglob(".*tmp")) == []
    tiny.run(folder, *busy, resume=True)
    assert same(outcome(folder), outcome(tiny.run(tmp_path / "whole", *busy))) == []
