"""A whole study, tiny but real: models are taught, runs train, tables come out, and nothing is done twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.study.__main__ import app
from benchmarks.study.grid import finished_run
from nemo_uecr.cli.main import entry_point
from nemo_uecr.files import locked
from tests.benchmarks.study.small import study_file


def run(*words: object) -> int:
    return entry_point([*map(str, words)], app)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    assert run(study_file(folder)) == 0
    return folder / "study"


@pytest.fixture
def copied(done: Path, tmp_path: Path) -> Path:
    """The finished study once more, at another place."""
    return shutil.copytree(done, tmp_path / "study")


@pytest.mark.slow
def test_numbers_are_those_of_the_runs(done: Path) -> None:
    content = json.loads((done / "results.json").read_text())
    finals = {(run["cell"]["arm"], run["cell"]["pair"]): run["final"] for run in content["runs"]}
    assert finals.keys() == {(arm, pair) for arm in ("uecr", "grpo") for pair in (0, 1)}
    for run in content["runs"]:
        records = [json.loads(line) for line in (Path(run["folder"]) / "evaluation.jsonl").read_text().splitlines()]
        assert run["final"] == 100 * records[-1]["average"]["avg"]
        assert [step for step, _ in run["curve"]] == [0, 2]
    (table,) = content["tables"]
    grpo = next(line for line in table["lines"] if line["arm"] == "grpo")
    gap = grpo["against"]["difference"]
    assert gap["mean"] == pytest.approx(sum(finals["uecr", pair] - finals["grpo", pair] for pair in (0, 1)) / 2)
    assert grpo["p_holm"] is None
    for name in ("curves", "differences-main"):
        for kind in ("png", "svg"):
            assert (done / "figures" / f"{name}.{kind}").stat().st_size > 1000
    assert "### Machinery only (one_update)" in (done / "summary.md").read_text()
    for kind in ("md", "tex"):
        text = (done / "tables" / f"main-one_update-differences.{kind}").read_text().replace("\\", "")
        assert f"{gap['mean']:+.1f}" in text
        assert (f"[{gap['low']:+.1f}, {gap['high']:+.1f}]" in text) == (gap["low"] < gap["high"])


@pytest.mark.slow
def test_students_differ_and_held_out_problems_are_held_out(done: Path) -> None:
    models = done / "task" / "models"
    assert len({(models / f"student-00{pair}" / "model.safetensors").read_bytes() for pair in (0, 1)}) == 2
    files = [*(done / "task" / "problems").glob("*.jsonl")]
    assert len(files) == 11  # train, five bench and five validation sets
    assert len({json.loads(line)["question"] for path in files for line in path.open()}) == 64 + 10 * 2
    train = [json.loads(line) for line in (done / "task" / "problems" / "train.jsonl").open()]
    assert [row["half"] for row in train] == ["first", "second"] * 32


@pytest.mark.slow
def test_tables_come_again_without_training(copied: Path) -> None:
    command = (study_file(copied.parent), "--tables-only")
    before = (copied / "summary.md").read_bytes()
    (copied / "summary.md").unlink()
    shutil.rmtree(copied / "tables")
    assert run(*command) == 0
    assert (copied / "summary.md").read_bytes() == before
    shutil.rmtree(copied / "runs" / "one_update" / "grpo" / "pair-001")
    assert run(*command) == 0
    summary = (copied / "summary.md").read_text()
    assert "Not finished: 1 of 4 runs, by variant, arm and pair: one_update grpo: 1." in summary


@pytest.mark.slow
def test_a_failed_run_is_named_and_the_next_call_does_what_is_missing_only(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, model = study_file(copied.parent), copied / "task" / "models" / "student-001"
    runs = sorted((copied / "runs").rglob("pair-00*"))
    whole = (model / "config.json").read_bytes()
    (model / "config.json").write_text("{")
    for folder in runs:
        if folder.name == "pair-001" or "grpo" in folder.parts:
            shutil.rmtree(folder)
    assert run(path) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("nemo-uecr: error: 2 of 4 runs failed")
    assert "student-001" in message
    kept = [folder for folder in runs if finished_run(folder) is not None]
    assert {folder.name for folder in kept} == {"pair-000"}
    stamps = [(folder / "metrics.jsonl").stat().st_mtime_ns for folder in kept]
    (model / "config.json").write_bytes(whole)
    provenance = json.loads((kept[0] / "provenance.json").read_text())
    provenance["source"]["package_sha256"] = "0" * 64
    (kept[0] / "provenance-1.json").write_text(json.dumps(provenance))  # begun under it, continued under today's
    assert run(path) == 0
    said = capsys.readouterr().out
    assert "0 models, 0 runs to choose learning rates, 2 runs for the tables" in said
    arm = kept[0].parent.name
    old = f"runs made by other code of the package: 1 of {arm};"
    assert old in said
    assert old in (copied / "summary.md").read_text()
    assert [(folder / "metrics.jsonl").stat().st_mtime_ns for folder in kept] == stamps
    assert all(finished_run(folder) is not None for folder in runs)
    study_file(copied.parent, variants={"one_update": ["loss.clip_low=0.1"]})
    assert run(path) == 2
    assert "loss.clip_low=0.2" in capsys.readouterr().err


def test_an_override_that_the_study_says_itself_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = study_file(tmp_path, variants={"one_update": ["run.seed=3"]})
    assert run(path, "--budget") == 2
    assert "variants.one_update: got run.seed=3" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_a_second_study_in_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(tmp_path / "study"):
        assert run(study_file(tmp_path)) == 2
    assert "study is in use" in capsys.readouterr().err
