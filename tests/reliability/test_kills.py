"""kill -9 in a step or an evaluation: what follows is what would have been without it, bit for bit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.evaluation import samples
from nemo_uecr.local import checkpoint, rollout, teachers, trainer
from nemo_uecr.responses.table import part_paths
from tests.local import tiny
from tests.local.tiny import in_child, outcome, same
from tests.responses.tables import records

BUSY = ("train.steps=3", "checkpoint.every=1", "rollout.responses_per_prompt=4")
#: Where a step can die: the function whose second call never returns, by part of the step.
PARTS = {
    "rollout": (rollout, "decode"),
    "scoring": (teachers, "score_teacher"),
    "update": (trainer, "update"),
    "save": (checkpoint, "save_pretrained"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return outcome(tiny.run(tmp_path_factory.mktemp("whole") / "run", *BUSY))


def die_inside(module: Any, name: str, *, call: int) -> None:
    """Make a function work, and end the process by SIGKILL before it returns from its ``call``-th call."""
    own, calls = getattr(module, name), 0

    def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        found = own(*arguments, **options)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(module, name, dying)


@pytest.mark.parametrize(
    "part", [part if part == "save" else pytest.param(part, marks=pytest.mark.slow) for part in PARTS]
)
def test_a_step_killed_in_the_middle(tmp_path: Path, whole: dict[str, object], part: str) -> None:
    folder = tmp_path / "run"

    def work() -> None:
        die_inside(*PARTS[part], call=2)
        tiny.run(folder, *BUSY)

    assert in_child(work)[0] == -signal.SIGKILL
    assert [path.name for path in (folder / "checkpoints").glob("step-*")] == ["step-000001"]
    tiny.run(folder, *BUSY, resume=True)
    assert same(outcome(folder), whole) == []


@pytest.mark.slow
def test_an_evaluation_killed_in_the_middle(tmp_path: Path) -> None:
    """The command itself: samples that were there are kept, none is drawn twice, the result is the same."""
    rows = [{"id": f"p{n}", "question": str(n), "answer": str(n)} for n in range(4)]
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["evaluate", str(tiny.assets().student), "--benchmarks", str(tmp_path / "set.jsonl"), "--samples", "2"]
    words += ["--batch", "2", "--max-tokens", "6", "--engine", "transformers", "--dtype", "float32", "--out"]

    def run(name: str) -> int:
        return entry_point([*words, str(tmp_path / name)])

    def work() -> None:
        from nemo_uecr.generation.engines import TransformersEngine

        die_inside(TransformersEngine, "generate", call=3)
        run("parts")

    assert in_child(work)[0] == -signal.SIGKILL
    kept = [row for part in part_paths(tmp_path / "parts" / "student" / samples.PARTS) for row in records(part)]
    assert 0 < len(kept) < 8
    assert run("parts") == run("whole") == 0
    again, whole = (records(tmp_path / name / "student" / "responses.parquet") for name in ("parts", "whole"))
    assert again[: len(kept)] == kept
    assert sorted(map(str, again)) == sorted(map(str, whole))
    results = [json.loads((tmp_path / name / "student" / "result.json").read_text()) for name in ("parts", "whole")]
    assert results[0]["sets"] == results[1]["sets"]
