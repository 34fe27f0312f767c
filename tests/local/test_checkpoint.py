"""Checkpoints are complete or absent; damage and a full disk are one clear line and lose nothing."""

from __future__ import annotations

import re
import resource
import shutil
from functools import partial
from pathlib import Path

import pytest

from nemo_uecr.audit.sources import run_source
from nemo_uecr.errors import CheckpointError
from nemo_uecr.generation.models import load_tokenizer
from nemo_uecr.local.provenance import verify_run
from tests.local import tiny
from tests.local.tiny import evaluation, every, in_child, outcome, same
from tests.reliability.commands import refused


@pytest.fixture(autouse=True)
def no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not committed here would fill a small disk with the run's `source.diff`."""
    monkeypatch.setenv("GIT_DIR", "/nonexistent")


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of a finished run that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_flipped_byte_is_found(folder: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "checkpoints" / "step-000002" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name}.*the checkpoint is corrupt.*--resume\) to use an earlier"):
        tiny.run(folder, *every(), resume=True)
    for words in (("export", path.parent, "--merged", tmp_path / "out"), evaluation(path.parent, tmp_path / "out")):
        assert f"{path}: content changed; the checkpoint is corrupt" in refused(capsys, *words)
    with pytest.raises(CheckpointError, match=f"{name}: content changed"):
        run_source(folder, steps=None).student_of(2)


def test_a_tokenizer_with_several_templates(tmp_path: Path) -> None:
    """transformers writes all but the first into a folder of their own, which belongs to the checkpoint."""
    student, words = tmp_path / "student", load_tokenizer(str(tiny.STUDENT), local_files_only=True)
    words.chat_template = {"default": words.chat_template, "tool_use": "{{ tools }}"}
    words.save_pretrained(shutil.copytree(tiny.STUDENT, student))
    folder = tiny.run(tmp_path / "run", *every(), f"student.model_name={student}")
    tiny.run(folder, *every(), f"student.model_name={student}", "train.steps=3", resume=True)
    assert verify_run(folder)["changed"] == []
    (named,) = (folder / "checkpoints" / "step-000003").rglob("tool_use.jinja")
    named.unlink()
    assert verify_run(folder)["changed"] == [f"{named.relative_to(folder)}: missing"]


def test_advice_of_the_message_works(folder: Path, trained: Path) -> None:
    """Delete the corrupt checkpoint and resume: the earlier one leads to the same end."""
    before, saved = outcome(trained), folder / "checkpoints" / "step-000001"
    assert (saved / "model.safetensors").stat().st_mode & 0o666 == saved.stat().st_mode & 0o666  # for the group, too
    shutil.rmtree(folder / "checkpoints" / "step-000002")
    tiny.run(folder, *every(), resume=True)
    assert same(outcome(folder), before) == []


@pytest.mark.slow
def test_full_disk_while_saving_keeps_the_earlier_checkpoint(tmp_path: Path, trained: Path) -> None:
    """A limit of file sizes gives a full disk's error at a chosen place: in the optimizer's file or in the weights."""
    folder = tiny.run(tmp_path / "run", *every(), "train.steps=1")
    first = folder / "checkpoints" / "step-000001"
    sizes = [path.stat().st_size for path in first.iterdir() if path.stat().st_size > 15_000]
    assert len(sizes) == 2
    earlier = {path.name: path.read_bytes() for path in first.iterdir()}

    def resumed(most: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        tiny.run(folder, *every(), resume=True)

    for size in sizes:
        code, text = in_child(partial(resumed, size - 1))
        assert code == 2, text
        assert re.search(r"cannot save .*step-000002: .*(too large|os error 27)", text), text
        assert "the checkpoint of step 1 is intact. Free disk space and run again with --resume" in text
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000001"]
        assert {path.name: path.read_bytes() for path in first.iterdir()} == earlier
    tiny.run(folder, *every(), resume=True)
    told_the_steps = ("config.yaml", "origins.json", "batches/step-000001.parquet")  # one when they were written
    assert same(outcome(folder), outcome(trained), ignoring=told_the_steps) == []
