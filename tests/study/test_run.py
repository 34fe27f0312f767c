"""A whole study, tiny but real: models are taught, runs train, tables come out, and nothing is done twice."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import yaml

from nemo_uecr.cli.main import entry_point
from nemo_uecr.stopping import StopRequest
from nemo_uecr.study.cells import selection_cells
from nemo_uecr.study.load import load_study
from nemo_uecr.study.overrides import OWN, OWN_MAPPING
from nemo_uecr.study.runner import finished
from nemo_uecr.study.study import run_study
from tests.holding import held
from tests.study.jobs import copy_run
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


def test_runs_of_another_learning_rate_are_refused(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done / "study", tmp_path / "study")
    config = next((tmp_path / "study" / "runs").rglob("pair-000/config.yaml"))
    text = config.read_text()
    rate = next(line for line in text.splitlines() if "learning_rate:" in line)
    config.write_text(text.replace(rate, rate.split(":")[0] + ": 0.125"))
    assert entry_point(["study", str(study_file(tmp_path)), "--tables-only"]) == 2
    assert "was trained with train.learning_rate=0.125, this study asks for" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("average", "complaint"),
    [("0.99", "expected the mean of level1, level2, level3, level4, level5")],
)
def test_an_average_that_is_no_mean_of_its_sets_is_refused(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], average: str, complaint: str
) -> None:
    shutil.copytree(done / "study", tmp_path / "study")
    record = tmp_path / "study" / "runs" / "one_update" / "grpo" / "pair-001" / "evaluation.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    lines[-1]["average"]["avg"] = float(average)
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert entry_point(["study", str(study_file(tmp_path)), "--tables-only"]) == 2
    assert complaint in capsys.readouterr().err


def break_record(folder: Path, **changes: object) -> None:
    """Change the last evaluation of one finished run of the tables; None removes."""
    record = folder / "study" / "runs" / "one_update" / "grpo" / "pair-001" / "evaluation.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    for key, change in changes.items():
        if change is None:
            lines[-1].pop(key)
        else:
            lines[-1][key] = change
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"level1": {"avg": 0.5, "low": 0.4, "high": 0.6}},
            "over level1; expected the mean of level1, level2, level3, level4, level5",
        ),
    ],
)
def test_an_evaluation_without_a_set_is_refused_before_anything_starts(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: object, expected: str
) -> None:
    shutil.copytree(done / "study", tmp_path / "study")
    break_record(tmp_path, sets=change)
    lost = tmp_path / "study" / "runs" / "one_update" / "uecr" / "pair-000"
    shutil.rmtree(lost)
    path = study_file(tmp_path)
    for option in ([], ["--budget"], ["--tables-only"]):
        assert entry_point(["study", str(path), *option]) == 2
        error = capsys.readouterr().err.strip()
        assert "runs/one_update/grpo/pair-001" in error
        assert expected in error
        assert "\n" not in error
    assert not lost.exists()


def test_models_say_how_long_they_were_taught(done: Path) -> None:
    for name in ("teacher", "student-000", "selection-000"):
        taught = json.loads((done / "study" / "task" / "models" / name / "teaching.json").read_text())
        assert taught["seconds"] > 0


def test_a_pair_without_its_initial_evaluation_waits(done: Path, tmp_path: Path) -> None:
    """An evaluation half-way must not stand for the student before training."""
    shutil.copytree(done / "study", tmp_path / "study")
    for arm in ("uecr", "grpo"):
        record = tmp_path / "study" / "runs" / "one_update" / arm / "pair-001" / "evaluation.jsonl"
        record.write_text(record.read_text().splitlines(keepends=True)[-1])
    entry_point(["study", str(study_file(tmp_path)), "--tables-only"])
    content = json.loads((tmp_path / "study" / "results.json").read_text())
    assert {run["cell"]["pair"] for run in content["runs"]} == {0}


def test_initial_evaluation_of_a_pair_stands_in_where_it_was_left_out(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done / "study", tmp_path / "study")
    path = study_file(tmp_path)
    content = json.loads((done / "study" / "results.json").read_text())
    record = tmp_path / "study" / "runs" / "one_update" / "grpo" / "pair-001" / "evaluation.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    assert len(lines) == 2
    record.write_text(lines[1])
    assert entry_point(["study", str(path), "--tables-only"]) == 0
    again = json.loads((tmp_path / "study" / "results.json").read_text())
    assert [run["initial"] for run in again["runs"]] == [run["initial"] for run in content["runs"]]
    assert [run["curve"] for run in again["runs"]] == [run["curve"] for run in content["runs"]]


def test_the_time_left_is_counted_from_what_runs_recorded(done: Path, tmp_path: Path) -> None:
    """Not from the clock: the first run to end waited for its process, and others are under way beside it."""
    shutil.copytree(done / "study", tmp_path / "study")
    study = load_study(study_file(tmp_path))
    runs = tmp_path / "study" / "runs"
    for path in runs.rglob("metrics.jsonl"):  # two steps of 300 s each
        records = [json.loads(line) | {"time/step_s": 300.0} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    recorded = runs.rename(tmp_path / "recorded")
    shutil.copytree(recorded / "one_update" / "uecr" / "pair-000", runs / "one_update" / "uecr" / "pair-000")
    lines = list[str]()
    run_study(study, partial(copy_run, recorded, runs), stop=StopRequest(), report=lines.append)
    said = [line.partition("  done")[2] for line in lines if line.startswith("tables ")]
    assert said == [", about 10 min left", ", about 10 min left", ""]  # 600 s * 2 / 2 processes, 600 s * 1 / 1


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
    assert finished(lost)


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
    assert sum(finished(folder) for folder in (tmp_path / "study" / "runs").rglob("pair-00*")) == 2


def test_another_task_in_the_folder_is_refused(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(done / "study", tmp_path / "study")
    task = yaml.safe_load(study_file(tmp_path).read_text())["task"] | {"seed": 1}
    assert entry_point(["study", str(study_file(tmp_path, task=task))]) == 2
    assert "describes another task than the study file" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{"], ids=["empty", "cut"])
def test_a_damaged_record_of_the_task_or_a_model_is_one_line(
    done: Path, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(done / "study", tmp_path / "study")
    for name, message in (("models/teacher/teaching.json", "no record of a model"), ("task.json", "no JSON")):
        path = tmp_path / "study" / "task" / name
        whole = path.read_bytes()
        path.write_text(content)
        assert entry_point(["study", str(study_file(tmp_path))]) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.startswith(f"nemo-uecr: error: {path}: {message}")
        path.write_bytes(whole)


ARM = {"pairs": 2, "teacher": "teacher"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"overrides": ["train.stepz=2"]}, "train.stepz"),
        ({"selection": {"learning_rates": [2e-4], "pairs": 1, "overrides": ["train.stepz=2"]}}, "train.stepz"),
        ({"selection": {"learning_rates": [2e-4], "pairs": 1, "overrides": ["train.steps=0"]}}, "train.steps"),
        (
            {"variants": {"one_update": ["run.seed=3"]}},
            "variants.one_update: got run.seed=3; every run gets its run.seed",
        ),
        (
            {"selection": {"learning_rates": [2e-4], "pairs": 1, "overrides": ["+run={folder: elsewhere}"]}},
            "selection.overrides: got +run={folder: elsewhere}; every run gets its run.folder from the study",
        ),
        (
            {
                "arms": {
                    "uecr": ARM | {"overrides": ["run.folder=elsewhere"], "learning_rate_of": None},
                    "grpo": ARM | {"overrides": [], "learning_rate_of": "uecr"},
                }
            },
            "arms.uecr.overrides: got run.folder=elsewhere; every run gets its run.folder from the study",
        ),
        ({"overrides": ["student=null"]}, "overrides: got student=null; every run gets its student.model_name from"),
        ({"overrides": ["student={}"]}, "overrides: got student={}; every run gets its student.model_name from"),
        ({"overrides": ["data=null"]}, "overrides: got data=null; every run gets its data.train from"),
        ({"overrides": ["run=null"]}, "overrides: got run=null; every run gets its run.folder from"),
        (
            {"overrides": ["evaluation=null"]},
            "overrides: got evaluation=null; every run gets its evaluation.benchmarks",
        ),
        (
            {"overrides": ["evaluation.benchmarks={aime24: x}"]},
            "overrides: got evaluation.benchmarks={aime24: x}; every",
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


@pytest.mark.parametrize("option", [[], ["--budget"], ["--tables-only"]])
def test_a_file_in_place_of_the_folder_is_refused_before_the_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "file/below"):
        path = study_file(tmp_path)
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"folder": str(tmp_path / folder)}))
        assert entry_point(["study", str(path), *option]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "file is no folder; choose another folder in the study file" in said.err


def test_what_the_study_says_itself_is_what_no_override_may_say(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path))
    stated = {text for texts in (study.overrides, *(arm.overrides for arm in study.arms.values())) for text in texts}
    cells = selection_cells(study)
    given = {text.partition("=")[0] for cell in cells for text in cell.overrides if text not in stated}
    assert {key for key in given if not key.startswith(f"{OWN_MAPPING}.")} == set(OWN)
