"""Checkpoints are complete or absent; damage and a full disk are one clear line and lose nothing."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nemo_uecr.data.models import save_tokenizer
from nemo_uecr.errors import CheckpointError, RunFolderError
from nemo_uecr.files import new_folder
from nemo_uecr.local.checkpoint import Checkpoints, optimizer_tensors, restore_optimizer
from nemo_uecr.local.models import load_model
from tests.local import tiny
from tests.local.tiny import Assets, in_child, outcome, same

EVERY = ("train.steps=2", "checkpoint.every=1", "checkpoint.keep_last=5")


@pytest.fixture(autouse=True)
def no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not committed here would fill a small disk with the run's `source.diff`."""
    monkeypatch.setenv("GIT_DIR", "/nonexistent")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.run(tmp_path_factory.mktemp("finished") / "run", *EVERY)


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def one_line(text: str) -> str:
    assert "\n" not in text.strip(), text
    return text


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json"])
def test_flipped_byte_is_found(folder: Path, name: str) -> None:
    path = folder / "checkpoints" / "step-000002" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"{name}.*the checkpoint is corrupt.*--resume to use an earlier"
    ) as error:
        tiny.run(folder, *EVERY, resume=True)
    one_line(str(error.value))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "config.json"])
def test_truncated_and_missing_files_are_found(folder: Path, name: str) -> None:
    path = folder / "checkpoints" / "step-000002" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{name}: got"):
        tiny.run(folder, *EVERY, resume=True)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{name}: got no such file"):
        tiny.run(folder, *EVERY, resume=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no manifest.json; expected a complete checkpoint"),
        (b"{}", "does not list"),
        (b"[]", "does not list"),
        (b"", "unreadable"),
        (b"\xff\xfe\x00", "unreadable"),
        (b"[1, 2]", "unreadable"),
        (b'{"config.json": null}', "does not list"),
    ],
)
def test_bad_manifest_is_found(folder: Path, content: bytes | None, message: str) -> None:
    manifest = folder / "checkpoints" / "step-000002" / "manifest.json"
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as error:
        tiny.run(folder, *EVERY, resume=True)
    one_line(str(error.value))


def test_advice_of_the_message_works(folder: Path, finished: Path) -> None:
    """Delete the corrupt checkpoint and resume: the earlier one leads to the same end."""
    before = outcome(finished)
    shutil.rmtree(folder / "checkpoints" / "step-000002")
    tiny.run(folder, *EVERY, resume=True)
    assert same(outcome(folder), before) == []


def test_checkpoint_is_an_ordinary_model_folder(folder: Path) -> None:
    """It loads as a student by itself, with the trained weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved = folder / "checkpoints" / "step-000002"
    trained = AutoModelForCausalLM.from_pretrained(saved)
    initial = AutoModelForCausalLM.from_pretrained(tiny.assets().student)
    moved = [
        float((a - b).detach().abs().max()) for a, b in zip(trained.parameters(), initial.parameters(), strict=True)
    ]
    # four AdamW steps of 0.003 move a weight by at most about 4 * 0.003
    assert 0.003 < max(moved) < 0.015
    assert AutoTokenizer.from_pretrained(saved)("12")["input_ids"] == tiny.build_tokenizer()("12")["input_ids"]


def test_optimizer_state_survives_the_round_trip() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 2) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    ours, theirs = (torch.optim.AdamW(layer.parameters(), lr=0.1) for layer in layers)
    layers[0](torch.ones(3)).sum().backward()
    ours.step()
    restore_optimizer(theirs, optimizer_tensors(ours))
    expected, found = optimizer_tensors(ours), optimizer_tensors(theirs)
    assert sorted(found) == ["0.exp_avg", "0.exp_avg_sq", "0.step", "1.exp_avg", "1.exp_avg_sq", "1.step"]
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_leftovers_of_a_killed_save_are_removed(folder: Path) -> None:
    left = folder / "checkpoints" / ".step-000003.tmp"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    (folder / "checkpoints" / ".file.tmp").write_bytes(b"half")
    loaded = tiny.configured(folder, *EVERY)
    assert Checkpoints(folder / "checkpoints", loaded.config).steps() == [1, 2]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000001", "step-000002"]


def test_new_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    with new_folder(target) as aside:
        (aside / "a").write_text("old")
        assert not target.exists()

    def fail() -> None:
        with new_folder(target) as aside:
            (aside / "a").write_text("new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert (target / "a").read_text() == "old"
    with new_folder(target) as aside:
        (aside / "b").write_text("new")
    assert [path.name for path in target.iterdir()] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def limited(folder: Path, bytes_a_file: int, *overrides: str, resume: bool = False) -> tuple[int, str]:
    """A run in which no file may grow beyond a size: the same error as a full disk, at a chosen place."""
    tiny.assets()  # made outside of the limit, whichever test comes first

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, resource.RLIM_INFINITY))
        tiny.run(folder, *overrides, resume=resume)

    return in_child(work)


def test_full_disk_while_saving_keeps_the_earlier_checkpoint(tmp_path: Path) -> None:
    """The limit falls into the optimizer's file or into the weights, each written by the safetensors library."""
    whole = outcome(tiny.run(tmp_path / "whole", *EVERY))
    folder = tiny.run(tmp_path / "run", *EVERY, "train.steps=1")
    first = folder / "checkpoints" / "step-000001"
    sizes = [path.stat().st_size for path in first.iterdir() if path.stat().st_size > 15_000]
    assert len(sizes) == 2
    earlier = {path.name: path.read_bytes() for path in first.iterdir()}
    for size in sizes:
        code, text = limited(folder, size - 1, *EVERY, resume=True)
        assert code == 2, text
        assert re.search(r"cannot save .*step-000002: .*(too large|os error 27)", one_line(text)), text
        assert "the checkpoint of step 1 is intact. Free disk space and run again with --resume" in text
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000001"]
        assert {path.name: path.read_bytes() for path in first.iterdir()} == earlier
    tiny.run(folder, *EVERY, resume=True)
    assert same(outcome(folder), whole) == []


def test_full_disk_while_the_tokenizer_is_written(tmp_path: Path) -> None:
    """That library says no more than a bare Exception."""
    model = load_model(
        str(tiny.assets().student), role="student", dtype="float32", device=torch.device("cpu"), trained=True
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save_tokenizer(model.tokenizer, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_at_the_first_save_says_that_nothing_is_saved(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, text = limited(folder, 60_000, *EVERY)
    assert (code, "no earlier checkpoint exists" in one_line(text)) == (2, True), text
    assert list((folder / "checkpoints").iterdir()) == []
    tiny.run(folder, *EVERY, resume=True)
    assert len(tiny.metrics(folder)) == 2


def test_full_disk_while_appending_metrics_leaves_whole_lines(tmp_path: Path) -> None:
    whole = outcome(tiny.run(tmp_path / "whole", "train.steps=4"))
    folder = tmp_path / "run"
    line = len((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[0])
    limit = int(2.5 * line)
    assert limit > (tmp_path / "whole" / "config.yaml").stat().st_size  # it is the metrics that do not fit
    code, text = limited(folder, limit, "train.steps=4")
    assert code == 2, text
    assert "run/metrics.jsonl: File too large" in one_line(text), text
    assert "run again with --resume" in text
    content = (folder / "metrics.jsonl").read_text()
    assert content.endswith("\n")
    assert [json.loads(found)["step"] for found in content.splitlines()] == [1, 2]
    tiny.run(folder, "train.steps=4", resume=True)
    assert same(outcome(folder), whole) == []


def test_full_disk_before_the_first_step(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, text = limited(folder, 100, *EVERY)
    assert code == 2
    assert re.search(r"cannot write .*: File too large", one_line(text)), text
    assert not folder.exists()
    tiny.run(folder, *EVERY)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that is really full; needs the right to mount."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_really_full_disk(tmp_path: Path, small_disk: Path, tiny: Assets) -> None:
    from tests.local.tiny import run

    whole = outcome(run(tmp_path / "whole", *EVERY))
    folder = small_disk / "run"
    size = sum(path.stat().st_size for path in (tmp_path / "whole" / "checkpoints" / "step-000001").iterdir())
    subprocess.run(["mount", "-o", f"remount,size={int(1.6 * size)}", str(small_disk)], check=True)
    code, text = in_child(lambda: run(folder, *EVERY))
    assert code == 2, text
    assert "No space left on device" in one_line(text), text
    assert "the checkpoint of step 1 is intact" in text
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000001"]
    subprocess.run(["mount", "-o", f"remount,size={8 * size}", str(small_disk)], check=True)
    run(folder, *EVERY, resume=True)
    assert same(outcome(folder), whole) == []


def test_run_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunFolderError, match="File exists") as error:
        tiny.run(tmp_path / "run")
    one_line(str(error.value))
    assert (tmp_path / "run").read_text() == "mine"


def test_unreadable_start_leaves_no_run(tmp_path: Path) -> None:
    """A run that never began is not "a run": the same folder works after the mistake is mended."""
    from nemo_uecr.errors import DataError

    with pytest.raises(DataError):
        tiny.run(tmp_path / "run", "data.train=/nowhere.jsonl")
    tiny.run(tmp_path / "run")
    assert len(tiny.metrics(tmp_path / "run")) == 2
