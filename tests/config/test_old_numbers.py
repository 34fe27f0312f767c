"""Numbers that YAML 1.1 reads otherwise than people do are refused, from the command line and in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.files import read_mapping
from nemo_uecr.config.overrides import override_layers
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import ConfigError

ODD = {"010": 8, "-017": -15, "1:30": 90, "1:00:00": 3600, "[1, 010]": 8}


@pytest.mark.parametrize("written", ODD)
def test_an_odd_number_is_one_line(written: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"a: x\nb:\n  c: {written}\n", encoding="utf-8")
    for read in (
        lambda: override_layers((f"train.steps={written}",), Config),
        lambda: read_mapping(str(path), above=()),
    ):
        with pytest.raises(
            ConfigError, match=rf"which YAML 1\.1 reads as {ODD[written]}; expected a decimal"
        ) as raised:
            read()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "written", ["0", "-0", "10", "0.5", "1e-6", "08", "0x10", "'010'", '"1:30"', "a:b", "1:90", "null"]
)
def test_other_values_stay(written: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"b: {written}\n", encoding="utf-8")
    assert "b" in read_mapping(str(path), above=())
    assert override_layers((f"train.steps={written}",), Config)


def test_a_text_may_be_all_digits() -> None:
    assert override_layers(("run.folder=010",), Config)
