"""A killed and resumed run equals an uninterrupted one, bit for bit, wherever the kill falls."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.errors import CheckpointError, RunFolderError
from tests.holding import held
from tests.local import tiny
from tests.local.tiny import Assets, in_child, outcome, same

#: Events of Python's audit hook that change the run folder.
WRITES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "os.truncate")
#: Those that `shutil.rmtree` raises with a name relative to an open folder.
RELATIVE = ("os.remove", "os.rmdir")


@pytest.fixture(scope="module")
def busy(tiny: Assets) -> tuple[str, ...]:
    """Settings under which everything that can be interrupted happens: two updates a batch, pruning, a best step."""
    return (
        "train.steps=4",
        f"evaluation.benchmarks={{a: {tiny.problems}}}",
        "evaluation.every=2",
        "evaluation.at_start=true",
        "checkpoint.every=1",
        "checkpoint.keep_last=1",
        "checkpoint.keep_best=true",
        "telemetry.save_batch_every=1",
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, busy: tuple[str, ...]) -> dict[str, object]:
    """The uninterrupted run."""
    folder = tiny.run(tmp_path_factory.mktemp("whole") / "run", *busy)
    found = outcome(folder)
    # What is compared is what should be there: 4 steps, 3 evaluations, the newest checkpoint and the best.
    assert [record["step"] for record in found["metrics"]] == [1, 2, 3, 4]
    assert [record["count/optimizer_steps"] for record in found["metrics"]] == [2, 4, 6, 8]
    assert [record["step"] for record in found["evaluation"]] == [0, 2, 4]
    assert {name.split("/")[1] for name in found if name.startswith("checkpoints/")} >= {"step-000004"}
    assert len([name for name in found if name.startswith("batches/")]) == 8
    return found


def watch_writes(folder: Path, at: Callable[[int, str], None]) -> None:
    """Call ``at(number, event)`` before each change of the run folder by this process; cannot be undone."""
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event not in WRITES or not arguments or not isinstance(arguments[0], str | os.PathLike):
            return
        writes = event != "open" or (isinstance(arguments[1], str) and arguments[1][:1] in "wax")
        inside = str(folder) in os.fspath(arguments[0]) or (event in RELATIVE and arguments[1] != -1)
        if writes and inside:
            count += 1
            at(count, event)

    sys.addaudithook(hook)


def recorded(folder: Path) -> int:
    """Steps that the metrics have."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def saved(folder: Path) -> set[int]:
    """Steps whose checkpoint is complete."""
    return {int(path.parent.name[-6:]) for path in (folder / "checkpoints").glob("step-*/manifest.json")}


def dying(folder: Path, busy: tuple[str, ...], death: int, *, resume: bool, saving: bool = False) -> int:
    """A run that is killed just before its ``death``-th change of the folder; returns how it ended.

    With ``saving`` only changes count between the record of a step and the end of its checkpoint.
    """
    count = 0

    def at(number: int, event: str) -> None:
        nonlocal count
        count += not saving or recorded(folder) > max(saved(folder), default=0)
        if count == death:
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        watch_writes(folder, at)
        tiny.run(folder, *busy, resume=resume)

    return in_child(work)[0]


def test_same_run_twice_is_the_same(tmp_path: Path, busy: tuple[str, ...], whole: dict[str, object]) -> None:
    assert same(outcome(tiny.run(tmp_path / "again", *busy)), whole) == []


def test_other_seed_is_another_run(tmp_path: Path, busy: tuple[str, ...], whole: dict[str, object]) -> None:
    assert "metrics" in same(outcome(tiny.run(tmp_path / "other", *busy, "run.seed=1")), whole)


def test_killed_at_every_kind_of_write(tmp_path: Path, busy: tuple[str, ...], whole: dict[str, object]) -> None:
    """Kill before a rename, a removal, a folder's creation: each leaves a folder from which the same run follows."""
    listing = tmp_path / "events"

    def record() -> None:
        with listing.open("w") as lines:
            watch_writes(tmp_path / "probe", lambda number, event: lines.write(f"{event}\n") and None)
            tiny.run(tmp_path / "probe", *busy)

    assert in_child(record) == (0, "")
    events = listing.read_text().split()
    assert len(events) > 60
    chosen = []
    dice = random.Random(0)
    for kind in ("os.rename", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.remove", "open"):
        places = [number for number, event in enumerate(events, start=1) if event == kind]
        assert places, kind
        chosen += dice.sample(places, min(2 if kind == "os.rename" else 1, len(places)))
    for death in chosen:
        folder = tmp_path / f"death-{death}"
        assert dying(folder, busy, death, resume=False) == -signal.SIGKILL
        code, text = in_child(lambda folder=folder: tiny.run(folder, *busy, resume=True))
        assert (code, text) == (0, ""), (death, events[death - 1])
        assert same(outcome(folder), whole) == [], (death, events[death - 1])


def test_killed_again_and_again(tmp_path: Path, busy: tuple[str, ...], whole: dict[str, object]) -> None:
    """One run that dies at random writes, by turns in a save and anywhere, until it gets through."""
    dice, folder = random.Random(3), tmp_path / "run"
    codes = []
    for saving in (True, False, True, False, True):
        death = dice.randint(2, 10) if saving else dice.randint(20, 110)
        codes.append(dying(folder, busy, death, resume=bool(codes), saving=saving))
        assert not saving or recorded(folder) > max(saved(folder), default=0)
    assert codes == [-signal.SIGKILL] * 5
    tiny.run(folder, *busy, resume=True)
    assert same(outcome(folder), whole) == []


def test_killed_at_random_times(tmp_path: Path, busy: tuple[str, ...], whole: dict[str, object]) -> None:
    """Deaths by the clock fall into rollout, scoring and update, where nothing is written."""
    dice, folder = random.Random(5), tmp_path / "run"
    codes = []
    while not codes or codes[-1] != 0:
        assert len(codes) < 30
        wait = dice.uniform(0.05, 0.4) if len(codes) < 5 else None
        code, text = in_child(lambda: tiny.run(folder, *busy, resume=True), kill_after=wait)
        assert code in (0, -signal.SIGKILL), text
        codes.append(code)
    assert codes.count(-signal.SIGKILL) >= 1  # how many strike depends on the machine
    assert same(outcome(folder), whole) == []


def test_killed_before_the_first_checkpoint(tmp_path: Path, busy: tuple[str, ...], whole: dict[str, object]) -> None:
    folder = tmp_path / "run"

    def at(number: int, event: str) -> None:
        if (folder / "metrics.jsonl").exists():  # step 1 is being recorded, nothing is saved
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        watch_writes(folder, at)
        tiny.run(folder, *busy)

    assert in_child(work)[0] == -signal.SIGKILL
    assert not list((folder / "checkpoints").glob("step-*"))
    assert len(tiny.records(folder / "evaluation.jsonl")) == 1
    tiny.run(folder, *busy, resume=True)
    assert same(outcome(folder), whole) == []


def test_more_steps_continue_the_run(tmp_path: Path) -> None:
    long = tiny.run(tmp_path / "long", "train.steps=4", "checkpoint.every=2", "train.warmup_steps=5")
    short = tiny.run(tmp_path / "short", "train.steps=2", "checkpoint.every=2", "train.warmup_steps=5")
    assert len(tiny.metrics(short)) == 2
    tiny.run(tmp_path / "short", "train.steps=4", "checkpoint.every=2", "train.warmup_steps=5", resume=True)
    assert same(outcome(short), outcome(long), ignoring=("config.yaml",)) == []


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    folder = tiny.run(tmp_path / "run")
    before = (folder / "metrics.jsonl").read_bytes(), outcome(folder)
    tiny.run(folder, resume=True)
    assert ((folder / "metrics.jsonl").read_bytes(), outcome(folder)) == before


@pytest.mark.parametrize("checkpoint", [True, False])
def test_other_configuration_is_refused_by_key(tmp_path: Path, checkpoint: bool) -> None:
    folder = tiny.run(tmp_path / "run")
    if not checkpoint:  # as after a kill before the first one
        import shutil

        shutil.rmtree(folder / "checkpoints")
    before = outcome(folder)
    with pytest.raises(CheckpointError, match=r"method\.rho=0\.5, this run has 0\.25"):
        tiny.run(folder, "method.rho=0.25", resume=True)
    assert same(outcome(folder), before) == []


def test_what_is_only_written_may_change(tmp_path: Path) -> None:
    folder = tiny.run(tmp_path / "run")
    tiny.run(folder, "telemetry.save_batch_every=1", "checkpoint.keep_last=3", "train.steps=3", resume=True)
    assert [path.name for path in sorted((folder / "batches").glob("*.safetensors"))] == ["step-000003.safetensors"]
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["step-000002", "step-000003"]


def test_second_run_into_a_used_folder_is_refused(tmp_path: Path) -> None:
    folder = tiny.run(tmp_path / "run")
    before = outcome(folder)
    with pytest.raises(RunFolderError, match="already holds a run; add --resume"):
        tiny.run(folder)
    assert same(outcome(folder), before) == []


def test_folder_in_use_is_refused_and_the_first_run_goes_on(tmp_path: Path) -> None:
    """A child holds the lock while this process tries to enter, also with --resume; the lock dies with its holder."""
    folder = tmp_path / "run"
    with held(folder):
        for resume in (False, True):
            with pytest.raises(RunFolderError, match="in use by another process"):
                tiny.run(folder, resume=resume)
        assert sorted(path.name for path in folder.iterdir()) == ["run.lock"]
    tiny.run(folder)
    assert len(tiny.metrics(folder)) == 2


def test_half_written_last_line_is_dropped(tmp_path: Path) -> None:
    folder = tiny.run(tmp_path / "run")
    before = outcome(folder)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 3, "reward/ta')
    tiny.run(folder, resume=True)
    assert same(outcome(folder), before) == []


def test_a_step_whose_line_was_half_written_is_made_again(tmp_path: Path, tiny: Assets) -> None:
    """Killed at that line of any log, before the step's checkpoint."""
    from tests.local.tiny import run

    every = ("checkpoint.every=1", f"evaluation.benchmarks={{a: {tiny.problems}}}", "evaluation.every=1")
    whole = run(tmp_path / "whole", *every)
    for name in ("metrics.jsonl", "evaluation.jsonl", "artifacts.jsonl"):
        folder = Path(shutil.copytree(whole, tmp_path / name / "run"))
        shutil.rmtree(folder / "checkpoints" / "step-000002")
        (folder / name).write_bytes((folder / name).read_bytes()[:-10])
        run(folder, *every, resume=True)
        assert same(outcome(folder), outcome(whole)) == []
        lines = (folder / name).read_text().splitlines()
        assert len([json.loads(line) for line in lines]) >= len((whole / name).read_text().splitlines())


def test_keep_last_and_best(tmp_path: Path) -> None:
    """Accuracy rises while the problems ask for the digit of the benchmark, and falls while they ask for another.

    So the best step lies in the middle; its checkpoint stays although it is older than the newest kept ones.
    """
    rows = [{"id": f"t{i}", "question": str(i % 4), "answer": "2" if i < 24 else "1"} for i in range(56)]
    asked = [{"id": f"b{i}", "question": str(i), "answer": "2"} for i in range(4)]
    for name, lines in (("train", rows), ("asked", asked)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder = tiny.run(
        tmp_path / "run",
        "method.name=grpo",
        f"data.train={tmp_path / 'train.jsonl'}",
        "data.shuffle=false",
        "rollout.prompts_per_step=4",
        "rollout.responses_per_prompt=8",
        "rollout.microbatch_responses=32",
        "rollout.temperature=1.0",
        "train.minibatch_responses=32",
        "train.microbatch_responses=32",
        "train.learning_rate=0.006",
        "train.steps=14",
        f"evaluation.benchmarks={{a: {tmp_path / 'asked.jsonl'}}}",
        "evaluation.every=1",
        "evaluation.samples=8",
        "checkpoint.every=1",
        "checkpoint.keep_last=2",
        "checkpoint.keep_best=true",
    )
    averages = [line["average"]["avg"] for line in tiny.records(folder / "evaluation.jsonl")]
    assert len(averages) == 14
    best = 1 + averages.index(max(averages))
    # Otherwise this run shows nothing: a rise before the best step, a fall after it, the lowest at the end.
    assert max(averages[0], averages[-1]) < averages[best - 1], averages
    assert 1 < best < 13, averages
    kept = [int(path.name[-6:]) for path in sorted((folder / "checkpoints").iterdir())]
    assert kept == [best, 13, 14]
    state = json.loads((folder / "checkpoints" / "step-000014" / "state.json").read_text())
    assert state["position"]["best_step"] == best
    assert state["position"]["best_average"] == averages[best - 1]


def test_changed_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_bytes(tiny.assets().problems.read_bytes())
    changes = ("train.steps=2", "checkpoint.every=1", f"data.train={data}")
    tiny.run(tmp_path / "run", *changes)
    data.write_bytes(data.read_bytes().replace(b'"answer"', b' "answer"', 1))
    with pytest.raises(CheckpointError, match="content of train has changed"):
        tiny.run(tmp_path / "run", "train.steps=3", *changes[1:], resume=True)
