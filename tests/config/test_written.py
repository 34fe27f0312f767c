"""A run's own `config.yaml` is data: read as it stands, nothing looked up for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import dump_config, load_config, read_written, written_config
from nemo_uecr.errors import ConfigError, RunFolderError

DEMO = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local" / "demo.yaml"


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(RunFolderError) as caught:
        read_written(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def test_what_a_run_wrote_comes_back(tmp_path: Path) -> None:
    config = load_config(DEMO, [r"data.prompt_template=\${{question}} and \ on its own"]).config
    path = written(tmp_path, dump_config(config))
    assert read_written(path) == config.model_dump(mode="json")
    assert written_config(path) == config


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "x ${method.name}"])
def test_nothing_is_looked_up(tmp_path: Path, text: str) -> None:
    assert read_written(written(tmp_path, f"a: '{text}'")) == {"a": text}


def test_what_is_no_mapping_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    assert str(path) in refusal(path)
    assert str(path) in refusal(written(tmp_path, "a: [\n"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: uecr", "name: uerc", "uerc"),
        ("seed:", "sead:", r"unknown key run\.sead"),
    ],
)
def test_a_value_that_no_run_has_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = dump_config(load_config(DEMO, []).config)
    assert text.count(old) >= 1
    with pytest.raises(ConfigError, match=said) as caught:
        written_config(written(tmp_path, text.replace(old, new, 1)))
    assert "\n" not in str(caught.value)
