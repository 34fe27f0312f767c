"""Rewards of the user's in the loop: telemetry, saved texts, report, and what a resumed run is held to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.config.load import load_config
from nemo_uecr.errors import CheckpointError, ConfigError, RewardError
from nemo_uecr.report.curves import curves
from nemo_uecr.responses.table import read_responses
from nemo_uecr.telemetry.run_folder import read_run
from tests.local.tiny import assets, metrics, run

SOURCE = """
def short(completions, completion_ids, **columns):
    return [-len(ids) / 6 for ids in completion_ids]

def likes(data_source, solution_str, ground_truth, extra_info):
    assert extra_info["id"].startswith("p")
    return float("3" in solution_str)

def breaks(solution_str, ground_truth):
    raise LookupError("no such test")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_ten_steps_with_two_rewards_reach_telemetry_and_report(tmp_path: Path, file: Path) -> None:
    both = f"reward=[math, {{call: {file}:short, weight: 0.25}}]"
    folder = run(tmp_path / "run", both, "train.steps=10", "telemetry.save_batch_every=1")
    found = metrics(folder)
    assert len(found) == 10
    for record in found:
        assert record["reward/short/failed"] == 0
        assert record["reward/short/mean"] == pytest.approx(-record["response/length_mean"] / 6)
        weighted = record["reward/verifier/mean"] + 0.25 * record["reward/short/mean"]
        assert record["reward/task_mean"] == pytest.approx(weighted, abs=1e-6)
    saved = read_responses(folder / "batches" / "step-000001.parquet")
    verdicts = [float(verdict == "correct") for verdict in saved.column("verdict")]
    assert saved.column("reward/verifier") == verdicts
    _, others = curves([read_run(folder)])
    assert {"reward/short/mean", "reward/verifier/mean"} <= {panel.name for panel in others}
    record = json.loads((folder / "provenance.json").read_text())
    assert "reward short" in record["sha256"]
    assert record["conventions"]["reward"] == "weighted sum of: verifier, short"


def test_a_run_continues_with_the_same_function_alone(tmp_path: Path, file: Path) -> None:
    settings = (f"reward={{call: {file}:likes}}", "correct_at=1")
    folder = run(tmp_path / "run", *settings, "train.steps=1")
    record = metrics(folder)[0]
    shares = [record.get(f"outcome/token_share_{suffix}", 0.0) for suffix in ("right", "wrong")]
    assert sum(shares) == pytest.approx(1)
    assert (record["reward/likes/mean"] > 0) == (shares[0] > 0)
    file.write_text(SOURCE.replace('"3"', '"2"'))
    with pytest.raises(CheckpointError, match="reward likes"):
        run(folder, *settings, "train.steps=2", resume=True)
    file.write_text(SOURCE)
    run(folder, *settings, "train.steps=2", resume=True)


def test_a_function_that_breaks_stops_the_run_with_its_traceback(tmp_path: Path, file: Path) -> None:
    with pytest.raises(RewardError, match=r"(?s)at least 1 of 8 responses.*step 1, problem p\d, row 0.*no such test"):
        run(tmp_path / "run", f"reward={{call: {file}:breaks}}")
    said = json.loads((tmp_path / "run" / "failure" / "failure.json").read_text())
    assert "row 0" in said["sample"]
    kept = read_responses(tmp_path / "run" / "failure" / "responses.parquet")
    assert len(kept) == 8
    assert kept.column("id")[0] == said["sample"]


def test_names_must_differ(file: Path) -> None:
    with pytest.raises(ConfigError, match="short, short"):
        load_config(assets().config, [f"reward=[{{call: {file}:short}}, {{call: {file}:short, weight: 2}}]"])
