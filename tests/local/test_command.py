"""`nemo-uecr train` on this machine: what it refuses, and that it trains on a folder of `data prepare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.files import file_sha256
from tests.data.made import deepmath_row, prepare_folder, write_benchmark, write_jsonl
from tests.local.tiny import DIGITS, Assets, run, train_words


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The error of a command that must fail: exit code 2 and one line that begins with the program's name."""
    capsys.readouterr()
    assert entry_point(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nemo-uecr: error: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.train=/missing.jsonl",), "/missing.jsonl: no such file"),
        (("teacher.model_name=/missing",), "teacher.model_name '/missing' is no model folder"),
        (("data.answer_key=final",), "problems.jsonl:1: no field 'final'"),
        (("method.rho=1.0",), "method.rho"),
        (("device=cuda",), "torch sees no GPU"),
    ],
)
def test_bad_input(
    tmp_path: Path, tiny: Assets, capsys: pytest.CaptureFixture[str], overrides: tuple[str, ...], message: str
) -> None:
    import torch

    if overrides == ("device=cuda",) and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert message in refused(capsys, train_words(tiny, tmp_path / "run", *overrides))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_prepared_folder_is_trained_on(tmp_path: Path) -> None:
    rows = [deepmath_row(str(digit), str(digit)) for digit in range(DIGITS)]
    source = write_jsonl(tmp_path / "source.jsonl", rows)
    prepared = prepare_folder(source, tmp_path / "data", write_benchmark(tmp_path))
    folder = run(tmp_path / "run", f"data.train={prepared}", "train.steps=1")
    record = json.loads((folder / "provenance.json").read_text())
    assert record["sha256"]["train"] == file_sha256(prepared / "train.jsonl")
