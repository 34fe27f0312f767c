"""A run that dies in the middle of writing a file: what has its own name is whole, and the same run follows.

The limit on the size of a file ends the process inside the write that passes it, with the bytes before it on disk.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from nemo_uecr.files import file_sha256
from tests.local import tiny
from tests.local.test_resume import recorded, saved
from tests.local.tiny import Assets, content, in_child, outcome, same

LOGS = ("artifacts.jsonl", "evaluation.jsonl", "metrics.jsonl")
#: Bytes of the last file that reach the disk; every file of a run but an empty one has more.
PART = 10
#: The lock's content is for people, the code's difference may be empty, and a checkpoint's lock is empty.
UNTORN = ("run.lock", "source.diff", "checkpoints/step.lock")
#: What native code writes, which no hook of Python sees: the file opened before it, and more bytes than that one has.
NATIVE = (
    ("checkpoints/step/generation_config.json", 2000),  # model.safetensors
    ("checkpoints/step/tokenizer_config.json", 2000),  # tokenizer.json
    ("checkpoints/step/tokenizer_config.json", 20_000),  # optimizer.safetensors
)


@pytest.fixture(scope="module")
def busy(tiny: Assets) -> tuple[str, ...]:
    """Settings under which every kind of file is written, and written again."""
    return (
        "train.steps=4",
        f"evaluation.benchmarks={{a: {tiny.problems}}}",
        "evaluation.every=1",
        "evaluation.at_start=true",
        "checkpoint.every=1",
        "checkpoint.keep_last=1",
        "telemetry.save_batch_every=1",
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, busy: tuple[str, ...]) -> dict[str, object]:
    """The uninterrupted run."""
    return outcome(tiny.run(tmp_path_factory.mktemp("whole") / "run", *busy))


def watch_opens(folder: Path, at: Callable[[str, int], None]) -> None:
    """Call ``at(kind, end)`` before a file of the run folder is opened for writing; cannot be undone.

    A kind is the file's name in the run, without the step and without what marks a name aside; ``end`` is where the
    first byte goes.
    """

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | os.PathLike):
            return
        path, mode, flags = Path(arguments[0]), arguments[1], arguments[2]
        writes = mode[:1] in "wax" if isinstance(mode, str) else bool(int(str(flags)) & os.O_WRONLY)
        if writes and folder in path.parents:
            parts = (re.sub(r"-\d+", "", part) for part in path.relative_to(folder).parts)
            kind = "/".join(part.lstrip(".").removesuffix(".tmp") for part in parts)
            if mode == "ab":
                at(f"end of {kind}", path.stat().st_size if path.exists() else 0)
            else:
                at(kind, 0)

    sys.addaudithook(hook)


def kinds_of(folder: Path, listing: Path, work: Callable[[], object]) -> list[str]:
    """Every kind that some work opens, in the order of the first time."""

    def record() -> None:
        with listing.open("w") as lines:
            watch_opens(folder, lambda kind, end: lines.write(f"{kind}\n") and None)
            work()

    assert in_child(record) == (0, "")
    return list(dict.fromkeys(listing.read_text().splitlines()))


def killed_after(step: int, folder: Path, busy: tuple[str, ...]) -> None:
    """A run that is killed when the checkpoint of a step is there."""

    def at(kind: str, end: int) -> None:
        if step in saved(folder):
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        watch_opens(folder, at)
        tiny.run(folder, *busy)

    assert in_child(work)[0] == -signal.SIGKILL


def torn(folder: Path, busy: tuple[str, ...], kind: str, part: int) -> int:
    """A run that goes on and dies as soon as a file opened at or after one of this kind passes ``part`` bytes."""

    def at(found: str, end: int) -> None:
        if found == kind:
            limit(resource.RLIMIT_FSIZE, end + part)

    def limit(kind: int, size: int) -> None:
        resource.setrlimit(kind, (size, resource.getrlimit(kind)[1]))

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and the write would fail instead
        limit(resource.RLIMIT_CORE, 0)
        watch_opens(folder, at)
        tiny.run(folder, *busy, resume=True)

    return in_child(work)[0]


def in_parts(folder: Path, whole: dict[str, object]) -> list[str]:
    """Files that stand under their own names and are not what the undisturbed run has there; a log may lack its end."""
    faults = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        if not any(part[0] == "." for part in name.parts) and str(name) != "run.lock":
            try:
                good = complete(path, folder, whole)
            except (OSError, ValueError, SafetensorError) as error:
                faults.append(f"{name}: {error}")
            else:
                faults += [] if good else [str(name)]
    return faults


def complete(path: Path, folder: Path, whole: dict[str, object]) -> bool:
    """Whether one file is whole; errors of reading it say the same."""
    name = str(path.relative_to(folder))
    if name in LOGS:
        return all(json.loads(line) for line in path.read_bytes().split(b"\n")[:-1])
    if path.name in ("manifest.json", "provenance.json"):
        return bool(json.loads(path.read_bytes()))
    if name.startswith("checkpoints/"):
        listed = json.loads(path.with_name("manifest.json").read_bytes())
        return bool(listed.get(path.name) == file_sha256(path))
    return content(path, folder) == whole.get(name)


@pytest.mark.slow
def test_a_run_torn_in_every_kind_of_write(tmp_path: Path, busy: tuple[str, ...], whole: dict[str, object]) -> None:
    """A run that never gets to its first checkpoint, by turns with each kind of file; then it gets through."""
    folder = tmp_path / "run"
    kinds = kinds_of(tmp_path / "probe", tmp_path / "kinds", lambda: tiny.run(tmp_path / "probe", *busy))
    assert {"config.yaml", "provenance.json", "batches/step.safetensors", "evaluations/step.jsonl"} < set(kinds)
    for kind, part in [*((kind, PART) for kind in kinds if kind not in UNTORN), *NATIVE]:
        assert torn(folder, busy, kind, part) == -signal.SIGXFSZ, kind
        assert in_parts(folder, whole) == [], kind
        assert not [*(folder / "checkpoints").glob("step-*")]
    tiny.run(folder, *busy, resume=True)
    assert same(outcome(folder), whole) == []


@pytest.mark.slow
def test_a_resumed_run_torn_in_every_kind_of_write(
    tmp_path: Path, busy: tuple[str, ...], whole: dict[str, object]
) -> None:
    """The same with two steps behind it: their records, and the checkpoint of the second, outlive each death."""
    folder = tmp_path / "run"
    killed_after(2, folder, busy)
    probe = Path(shutil.copytree(folder, tmp_path / "probe"))
    kinds = kinds_of(probe, tmp_path / "kinds", lambda: tiny.run(probe, *busy, resume=True))
    assert set(LOGS) < set(kinds)
    for kind, part in [*((kind, PART) for kind in kinds if kind not in UNTORN), *NATIVE]:
        assert torn(folder, busy, kind, part) == -signal.SIGXFSZ, kind
        assert in_parts(folder, whole) == [], kind
        assert saved(folder) == {2}
        assert recorded(folder) >= 2
    tiny.run(folder, *busy, resume=True)
    assert same(outcome(folder), whole) == []
