"""Records on disk, TensorBoard events and progress."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from nemo_uecr.errors import RunFolderError
from nemo_uecr.telemetry import metric_table
from nemo_uecr.telemetry.run_folder import worst_residuals
from nemo_uecr.telemetry.sinks import Progress, StepLog, append_record, read_records, truncate_records
from tests.telemetry.records import EVALUATION, STEP


def test_records_are_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for step in (1, 2, 3):
        append_record(path, {"step": step, "text": "ü\n"})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_record(path, {"step": float("nan")})
    assert len(path.read_text().splitlines()) == 3


def test_truncation_drops_later_steps_and_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for step in (0, 1, 2, 3):
        append_record(path, {"step": step})
    with path.open("a") as lines:
        lines.write('{"step": 1')
    truncate_records(path, last_step=2)
    assert path.read_text() == '{"step": 0}\n{"step": 1}\n{"step": 2}\n'
    truncate_records(path, last_step=-1)
    assert path.read_text() == ""
    truncate_records(tmp_path / "missing.jsonl", last_step=0)
    assert [found.name for found in tmp_path.iterdir()] == ["lines.jsonl"]


def test_an_unknown_name_and_an_infinite_number_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither ends the run; the number, which JSON cannot hold, is left out."""
    log = StepLog(tmp_path, [], Progress(total=3, style="off"))
    log.step(3, STEP | {"policy/lose": 1.0, "policy/loss": math.inf})
    assert "metric 'policy/lose' is not in the table" in caplog.text
    assert "metric policy/loss is inf at step 3" in caplog.text
    (record,) = read_records(tmp_path / "metrics.jsonl")[0]
    assert record.keys() == {"step", "policy/lose", *STEP}


def test_a_corrupt_line_is_named_and_half_a_last_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"step": 1}\n{"st')
    assert read_records(path) == ([{"step": 1}], True)
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(RunFolderError, match=r"lines\.jsonl:2"):
        read_records(path)
    assert read_records(tmp_path / "missing.jsonl") == ([], False)


def test_every_metric_has_one_line() -> None:
    names = [row[0] for row in metric_table._TABLE] + [metric.name for metric in metric_table._split_metrics()]
    assert len({*names}) == len(names)


@pytest.mark.parametrize("style", ["lines", "bar", "off"])
def test_progress(style: str) -> None:
    progress = Progress(total=4, style=style, stream=(stream := io.StringIO()))
    progress.evaluation(EVALUATION)
    progress.step(1, STEP)
    progress.close()
    lines = stream.getvalue().splitlines()
    if style == "lines":
        assert lines[0].startswith("step 0/4  avg@12 50.0 [25.0, 75.0]  a 50.0")
        assert lines[1] == "step 1/4  reward 0.250  mixed groups 50%  length 4.0  grad 1.000  0.10 s"
    assert ("\u2501" in stream.getvalue()) == (style == "bar")
    assert bool(lines) == (style != "off")


def test_the_worst_residual_of_every_step(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "identity/budget_error": 1e-7, "policy/loss": 9.0, "policy/first_ratio_error": 0.0}',
        '{"step": 2, "identity/budget_error": 3e-7, "policy/loss": 9.0, "policy/first_ratio_error": 2e-6}',
        '{"step": 3, "identity/budget_error": 2e-7, "policy/loss": 9.0, "policy/first_ratio_error": 1e-6}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert worst_residuals(tmp_path) == {"identity/budget_error": 3e-7, "policy/first_ratio_error": 2e-6}
