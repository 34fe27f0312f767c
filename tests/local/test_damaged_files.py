"""Files of a run folder that were altered by hand: resuming and verifying is one line that names the file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from nemo_uecr.errors import CheckpointError, RunFolderError, UecrError
from nemo_uecr.files import file_sha256
from nemo_uecr.local.input_hashes import input_hashes, renamed
from nemo_uecr.local.verify import verify_run
from tests.local import tiny
from tests.local.tiny import Assets

CHECKPOINT = Path("checkpoints") / "step-000001"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.run(tmp_path_factory.mktemp("finished") / "run", "train.steps=1")


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def refused(folder: Path, kind: type[UecrError], path: Path) -> None:
    """In one line that names the file, which stays as it is, as does every checkpoint."""
    before = contents(folder, path)
    with pytest.raises(kind, match=re.escape(str(path))) as error:
        tiny.run(folder, "train.steps=1", resume=True)
    assert "\n" not in str(error.value)
    assert contents(folder, path) == before


def contents(folder: Path, path: Path) -> dict[Path, bytes]:
    """What is in a file and in those of every checkpoint."""
    files = [path, *(each for each in (folder / "checkpoints").rglob("*") if each.is_file())]
    return {each: each.read_bytes() for each in files}


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", "null", "7", '{"sha256": 5}', '{"sha256": {"train": 5}}',
     '{"sha256": {}, "source": 5}', "\xff"],
    ids=str.__len__,
)  # fmt: skip
def test_damaged_provenance(folder: Path, content: str) -> None:
    path = folder / "provenance.json"
    path.write_text(content, encoding="latin-1")
    refused(folder, RunFolderError, path)
    with pytest.raises(RunFolderError, match=re.escape(str(path))):
        verify_run(folder, objective_of=lambda _: "objective", locate=lambda name: name)
    assert path.read_text(encoding="latin-1") == content


@pytest.mark.parametrize("content", ["{", "5", '[["a"]]'], ids=["cut off", "number", "list"])
def test_damaged_manifest(folder: Path, content: str) -> None:
    path = folder / CHECKPOINT / "manifest.json"
    path.write_text(content)
    refused(folder, CheckpointError, path)


STATES = {
    "empty": {},
    "no configuration": {"position": {"step": 1, "optimizer_steps": 2, "best_step": None, "best_average": None}},
    "position is a list": {"config": {}, "position": []},
    "position lacks": {"config": {}, "position": {"step": 1}},
    "position has more": {"config": {}, "position": {"step": 1, "optimizer_steps": 2, "best_step": None, "more": 1}},
    "step is a text": {
        "config": {},
        "position": {"step": "1", "optimizer_steps": 2, "best_step": None, "best_average": None},
    },
    "no object": [],
}  # fmt: skip


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_damaged_state_behind_a_manifest_that_agrees(folder: Path, state: object) -> None:
    path = folder / CHECKPOINT / "state.json"
    path.write_text(json.dumps(state))
    manifest = folder / CHECKPOINT / "manifest.json"
    hashes = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(hashes | {"state.json": file_sha256(path)}))
    refused(folder, CheckpointError, path)


@pytest.mark.parametrize("name", ["train", "train manifest", "student", "teacher", "teacher tokenizer"])
def test_a_benchmark_by_the_name_of_another_input_hides_no_change(tmp_path: Path, tiny: Assets, name: str) -> None:
    """Each input keeps an entry of its own, so the digest of the other one still stands there."""
    from tests.local.tiny import configured

    plain = input_hashes(configured(tmp_path, "evaluation.benchmarks={}").config, str)
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_bytes(tiny.problems.read_bytes() + b"\n")
    named = input_hashes(configured(tmp_path, f"evaluation.benchmarks={{{name}: {held_out}}}").config, str)
    assert named == plain | {f"benchmark {name}": file_sha256(held_out)}


def test_changed_training_data_beside_a_benchmark_called_train(tmp_path: Path, tiny: Assets) -> None:
    from tests.local.tiny import run

    data = tmp_path / "train.jsonl"
    data.write_bytes(tiny.problems.read_bytes())
    changes = (f"data.train={data}", f"evaluation.benchmarks={{train: {tiny.problems}}}", "evaluation.samples=1")
    run(tmp_path / "run", "train.steps=1", *changes)
    data.write_bytes(data.read_bytes().replace(b'"answer"', b' "answer"', 1))
    with pytest.raises(CheckpointError, match="content of train has changed"):
        run(tmp_path / "run", "train.steps=2", *changes, resume=True)


def test_an_earlier_record_is_still_compared(tmp_path: Path, tiny: Assets) -> None:
    """Its benchmarks stood under their own names."""
    from tests.local.tiny import configured

    config = configured(tmp_path, f"evaluation.benchmarks={{a: {tiny.problems}, train: {tiny.problems}}}").config
    assert renamed({"train": "1", "a": "2", "student": "3"}, config) == {
        "train": "1", "benchmark a": "2", "student": "3",
    }  # fmt: skip
    assert renamed({"train": "1", "benchmark a": "2"}, config) == {"train": "1", "benchmark a": "2"}
