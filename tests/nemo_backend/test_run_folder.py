"""A run folder is begun once and continued only when asked to, as the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.load import load_nemo, load_nemo_config
from nemo_uecr.errors import CheckpointError, RunFolderError
from nemo_uecr.nemo.run_folder import begun_by_a_step, check_folder, drop_later_records, write_run_files
from tests.config.test_nemo import CONFIGS, GRPO


def configuration(folder: Path, *changes: str) -> Any:
    return load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GRPO, f"run.folder={folder}", *changes])


def begin(folder: Path) -> None:
    loaded = load_nemo(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GRPO, f"run.folder={folder}"])
    write_run_files(loaded.config, origins=loaded.origins, objective="loss = 0", version="0.7.0")


def test_a_begun_run_is_continued_only_when_asked_to_and_as_it_was(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(RunFolderError, match="already holds a run; add --resume"):
        check_folder(configuration(tmp_path), resume=False)
    check_folder(configuration(tmp_path), resume=True)
    check_folder(configuration(tmp_path, "train.steps=900", "checkpoint.every=5"), resume=True)
    with pytest.raises(CheckpointError, match=r"was written with rollout\.temperature=0\.7, this run has 0\.9"):
        check_folder(configuration(tmp_path, "rollout.temperature=0.9"), resume=True)


def test_checkpoints_of_another_hand_are_not_continued(tmp_path: Path) -> None:
    """NeMo-RL would go on from them without a word."""
    (tmp_path / "checkpoints" / "step_20").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="add --resume"):
        check_folder(configuration(tmp_path), resume=False)


def test_the_folder_says_what_the_run_is(tmp_path: Path) -> None:
    begin(tmp_path)
    assert load_nemo_config(tmp_path / "config.yaml", []) == configuration(tmp_path)
    assert json.loads((tmp_path / "origins.json").read_text())["run.folder"] == "override"
    assert json.loads((tmp_path / "tolerances.json").read_text())["first_ratio"] == 0.5
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert (record["objective"], record["versions"]["nemo_rl"]) == ("loss = 0", "0.7.0")


def test_evaluations_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (0, 20, 40)))
    drop_later_records(configuration(tmp_path), completed_steps=20)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 20]
    drop_later_records(configuration(tmp_path), completed_steps=0)
    assert path.read_text() == ""


def test_a_run_that_failed_before_its_first_step_can_be_begun_again(tmp_path: Path) -> None:
    def fail(completed: int) -> None:
        with begun_by_a_step(configuration(tmp_path), lambda: completed):
            begin(tmp_path)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail(0)
    check_folder(configuration(tmp_path, "rollout.temperature=0.9"), resume=False)
    with pytest.raises(RuntimeError, match="inside"):
        fail(1)
    with pytest.raises(RunFolderError, match="add --resume"):
        check_folder(configuration(tmp_path), resume=False)
    with pytest.raises(RuntimeError, match="inside"):
        fail(0)  # a continued run that failed: what was there stays
    assert (tmp_path / "config.yaml").exists()
