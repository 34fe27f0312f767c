"""A run's own `config.yaml`: data, with nothing looked up for it, and what may not change when the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import (
    check_same_configuration,
    dump_config,
    load_config,
    read_written,
    written_config,
)
from nemo_uecr.errors import CheckpointError, ConfigError, RunFolderError

DEMO = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local" / "demo.yaml"


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_a_run_wrote_comes_back(tmp_path: Path) -> None:
    config = load_config(DEMO, [r"data.prompt_template=\${{question}} and \ on its own"]).config
    path = written(tmp_path, dump_config(config))
    assert read_written(path) == config.model_dump(mode="json")
    assert written_config(path) == config


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "x ${method.name}"])
def test_nothing_is_looked_up(tmp_path: Path, text: str) -> None:
    assert read_written(written(tmp_path, f"a: '{text}'")) == {"a": text}


def test_what_no_run_has_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="No such file"):
        read_written(tmp_path / "config.yaml")
    with pytest.raises(RunFolderError, match=r"config\.yaml cannot be read"):
        read_written(written(tmp_path, "a: [\n"))
    text = dump_config(load_config(DEMO, []).config)
    with pytest.raises(ConfigError, match=r"unknown key run\.sead") as caught:
        written_config(written(tmp_path, text.replace("seed:", "sead:", 1)))
    assert "\n" not in str(caught.value)


def resumed(saved: list[str], now: list[str]) -> None:
    before = load_config(DEMO, saved).config.model_dump(mode="json")
    check_same_configuration(Path("runs/one"), load_config(DEMO, now).config, before)


@pytest.mark.parametrize(
    "override", ["train.steps=999", "run.folder=elsewhere", "checkpoint.every=3", "telemetry.save_batch_every=7"]
)
def test_what_is_written_and_how_long_may_change(override: str) -> None:
    resumed([], [override])


def test_what_is_trained_may_not() -> None:
    """The first difference in alphabetical order is named."""
    with pytest.raises(CheckpointError, match=r"^runs/one was written with loss\.clip_low=0\.11, this run has 0\.2"):
        resumed(["run.seed=77", "loss.clip_low=0.11"], [])
