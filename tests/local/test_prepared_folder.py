"""A folder of `nemo-uecr data prepare`, named in a configuration, is trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.files import file_sha256
from tests.data.made import deepmath_row, prepare_folder, write_benchmark, write_jsonl
from tests.local.tiny import DIGITS, run


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    rows = [deepmath_row(str(digit), str(digit)) for digit in range(DIGITS)]
    return prepare_folder(write_jsonl(tmp_path / "source.jsonl", rows), tmp_path / "data", write_benchmark(tmp_path))


def test_one_step_on_a_prepared_folder(prepared: Path, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", f"data.train={prepared}", "train.steps=1", "telemetry.save_batch_every=1")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    record = json.loads((folder / "provenance.json").read_text())
    assert record["sha256"]["train"] == file_sha256(prepared / "train.jsonl")
    # The folder and its file are the same data, so one continues the other.
    run(tmp_path / "run", f"data.train={prepared}", "train.steps=1", resume=True)


def test_a_prepared_folder_that_was_altered_is_refused(prepared: Path, tmp_path: Path) -> None:
    train = prepared / "train.jsonl"
    train.write_text(train.read_text().replace('"answer": "3"', '"answer": "2"'))
    with pytest.raises(DataError, match="is not the one of the manifest"):
        run(tmp_path / "run", f"data.train={prepared}")
