"""A whole study, tiny but real: models are taught, runs train, tables come out, and nothing is done twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.study.grid import finished_run
from tests.holding import held
from tests.study.made import study_file

pytest.importorskip("scipy", reason="the study extra is not installed")
pytest.importorskip("matplotlib", reason="the study extra is not installed")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    assert entry_point(["study", str(study_file(folder))]) == 0
    return folder


def test_numbers_are_those_of_the_runs(done: Path) -> None:
    content = json.loads((done / "study" / "results.json").read_text())
    assert {(run["cell"]["arm"], run["cell"]["pair"]) for run in content["runs"]} == {
        (arm, pair) for arm in ("uecr", "grpo") for pair in (0, 1)
    }
    for run in content["runs"]:
        records = [json.loads(line) for line in (Path(run["folder"]) / "evaluation.jsonl").read_text().splitlines()]
        assert run["final"] == 100 * records[-1]["average"]["avg"]
        assert [step for step, _ in run["curve"]] == [0, 2]
    (table,) = content["tables"]
    finals = {(run["cell"]["arm"], run["cell"]["pair"]): run["final"] for run in content["runs"]}
    grpo = next(line for line in table["lines"] if line["arm"] == "grpo")
    gaps = [finals["uecr", pair] - finals["grpo", pair] for pair in (0, 1)]
    assert grpo["against"]["difference"]["mean"] == pytest.approx(sum(gaps) / 2)
    assert grpo["p_holm"] is None
    for name in ("curves", "differences-main", "costs", "sensitivity"):
        for kind in ("png", "svg"):
            assert (done / "study" / "figures" / f"{name}.{kind}").stat().st_size > 1000
    assert "### Machinery only (one_update)" in (done / "study" / "summary.md").read_text()


def test_tables_say_the_same_in_every_format(done: Path) -> None:
    content = json.loads((done / "study" / "results.json").read_text())
    grpo = next(line for line in content["tables"][0]["lines"] if line["arm"] == "grpo")
    gap = grpo["against"]["difference"]
    shown = f"{gap['mean']:+.1f}", f"[{gap['low']:+.1f}, {gap['high']:+.1f}]"
    for kind in ("md", "tex", "html"):
        text = (done / "study" / "tables" / f"main-one_update-differences.{kind}").read_text().replace("\\", "")
        (line,) = [line for line in text.splitlines() if "grpo" in line and "minus" not in line]
        assert shown[0] in line
        assert shown[1] in line
    levels = (done / "study" / "tables" / "main-one_update-sets.md").read_text().splitlines()
    assert levels[0].startswith("| Arm, avg@2 (%) | level1 | level2 | level3 | level4 | level5 | Avg. |")
    initial = [run["initial_sets"]["level1"] for run in content["runs"] if run["cell"]["arm"] == "uecr"]
    assert levels[2].startswith(f"| initial | {sum(initial) / len(initial):.2f} |")
    assert "<h2>Machinery only (one_update)</h2>" in (done / "study" / "summary.html").read_text()


def test_tables_come_again_without_training(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "study", tmp_path / "study")
    path = study_file(tmp_path)
    before = {name: (tmp_path / "study" / name).read_bytes() for name in ("summary.md", "summary.html")}
    for name in before:
        (tmp_path / "study" / name).unlink()
    shutil.rmtree(tmp_path / "study" / "tables")
    assert entry_point(["study", str(path), "--tables-only"]) == 0
    assert {name: (tmp_path / "study" / name).read_bytes() for name in before} == before
    shutil.rmtree(tmp_path / "study" / "runs" / "one_update" / "grpo" / "pair-001")
    assert entry_point(["study", str(path), "--tables-only"]) == 0
    summary = (tmp_path / "study" / "summary.md").read_text()
    assert "Not finished: 1 of 4 runs, by variant, arm and pair: one\\_update grpo: 1." in summary or (
        "Not finished: 1 of 4 runs, by variant, arm and pair: one_update grpo: 1." in summary
    )


def test_students_differ_and_held_out_problems_are_held_out(done: Path) -> None:
    task = done / "study" / "task"
    weights = {(task / "models" / name / "model.safetensors").read_bytes() for name in ("student-000", "student-001")}
    assert len(weights) == 2
    questions = {
        path.stem: {json.loads(line)["question"] for line in path.read_text().splitlines()}
        for path in (task / "problems").glob("*.jsonl")
    }
    assert len(questions) == 11  # train, five bench and five validation sets
    assert sum(map(len, questions.values())) == len(set().union(*questions.values())) == 64 + 10 * 2


def test_second_call_does_what_is_missing_only(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(done / "study", tmp_path / "study")
    path = study_file(tmp_path)
    again = [*(tmp_path / "study" / "runs").rglob("pair-00*")]
    assert len(again) == 4
    kept, lost = sorted(again)[:3], sorted(again)[3]
    stamps = [(folder / "metrics.jsonl").stat().st_mtime_ns for folder in kept]
    # folders name their run by absolute path: a copied study is another study's, so begin anew what is not finished
    shutil.rmtree(lost)
    assert entry_point(["study", str(path)]) == 0
    assert "0 models, 0 runs to choose learning rates, 1 runs for the tables" in capsys.readouterr().out
    assert [(folder / "metrics.jsonl").stat().st_mtime_ns for folder in kept] == stamps
    assert finished_run(lost) is not None


def test_failed_run_is_named_and_the_others_are_kept(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done / "study", tmp_path / "study")
    model = tmp_path / "study" / "task" / "models" / "student-001" / "config.json"
    model.write_text("{")
    shutil.rmtree(tmp_path / "study" / "runs")
    assert entry_point(["study", str(study_file(tmp_path))]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("nemo-uecr: error: 2 of 4 runs failed, the first")
    assert "student-001" in message
    assert sum(finished_run(folder) is not None for folder in (tmp_path / "study" / "runs").rglob("pair-00*")) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overrides": ["train.stepz=2"]}, "train.stepz"),
        (
            {"variants": {"one_update": ["run.seed=3"]}},
            "variants.one_update: got run.seed=3; every run gets its run.seed",
        ),
    ],
)
def test_a_faulty_override_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], message: str
) -> None:
    path = study_file(tmp_path, **changes)
    assert entry_point(["study", str(path), "--budget"]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "study").exists()


def test_a_second_study_in_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study_file(tmp_path)
    with held(tmp_path / "study"):
        for option in ([], ["--tables-only"]):
            assert entry_point(["study", str(path), *option]) == 2
            said = capsys.readouterr()
            assert said.out == ""
            assert "study is in use by another process; wait for it or choose another folder" in said.err
        assert entry_point(["study", str(path), "--budget"]) == 0
        assert [each.name for each in (tmp_path / "study").iterdir()] == ["run.lock"]
