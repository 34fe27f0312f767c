"""Reading a run folder: finished, in progress, stopped, damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.report.run_folder import read_run, read_runs, read_samples

RunMaker = Callable[..., Path]


def test_finished_run(make_run: RunMaker) -> None:
    run = read_run(make_run("finished"))
    assert run.method == "uecr"
    assert [record["step"] for record in run.steps] == list(range(1, 41))
    assert run.complete
    assert run.notes == ()
    assert [batch.step for batch in run.batches] == [1, 20, 40]


def test_run_in_progress_is_not_complete(make_run: RunMaker) -> None:
    run = read_run(make_run("open", steps=23))
    assert (run.last_step, run.planned_steps) == (23, 40)
    assert not run.complete


def test_run_without_benchmarks_is_complete_after_its_last_step_only(make_run: RunMaker) -> None:
    for steps, complete in ((23, False), (40, True)):
        folder = make_run(f"steps-{steps}", steps=steps, evaluations=())
        head = (folder / "config.yaml").read_text().split("  benchmarks:")[0]
        (folder / "config.yaml").write_text(head + "  benchmarks: {}\n")
        assert read_run(folder).complete is complete


def test_all_steps_but_no_final_evaluation_is_not_complete(make_run: RunMaker) -> None:
    assert not read_run(make_run("unevaluated", evaluations=(0, 10))).complete


def test_failed_run_is_not_complete(make_run: RunMaker) -> None:
    folder = make_run("failed")
    (folder / "failure").mkdir()
    (folder / "failure" / "failure.json").write_text('{"step": 41, "error": "identity \'budget\' is off"}')
    run = read_run(folder)
    assert run.failure is not None
    assert not run.complete


def test_half_written_last_line_is_left_out_and_noted(make_run: RunMaker) -> None:
    folder = make_run("writing", steps=5)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 6, "reward/ta')
    run = read_run(folder)
    assert run.last_step == 5
    assert run.notes == ("The last line of metrics.jsonl is half-written and was left out.",)


def test_malformed_line_names_file_and_line(make_run: RunMaker) -> None:
    folder = make_run("damaged", steps=3)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[1] = lines[1][:-4]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl line 2 is no valid JSON"):
        read_run(folder)


def test_line_without_step_is_refused(make_run: RunMaker) -> None:
    folder = make_run("stepless", steps=1)
    (folder / "metrics.jsonl").write_text('{"reward/task_mean": 0.5}\n')
    with pytest.raises(RunFolderError, match="line 1 has no integer step"):
        read_run(folder)


def test_a_step_written_twice_counts_as_written_last(make_run: RunMaker) -> None:
    folder = make_run("resumed", steps=2)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 2, "reward/task_mean": 0.75}\n')
    run = read_run(folder)
    assert len(run.steps) == 2
    assert run.steps[1] == {"step": 2, "reward/task_mean": 0.75}


def test_values_are_absent_where_the_run_has_none(make_run: RunMaker) -> None:
    folder = make_run("gaps", steps=1)
    (folder / "metrics.jsonl").write_text('{"step": 1, "a": 1.0}\n{"step": 2, "b": 2.0}\n{"step": 3, "a": 3.0}\n')
    assert read_run(folder).values("a") == ([1, 3], [1.0, 3.0])


@pytest.mark.parametrize("name", ["config.yaml", "origins.json", "provenance.json", "tolerances.json"])
def test_missing_first_file_is_refused(make_run: RunMaker, name: str) -> None:
    folder = make_run("torso")
    (folder / name).unlink()
    with pytest.raises(RunFolderError, match=f"has no {name}; expected the run folder"):
        read_run(folder)


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is no folder"):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["provenance.json", "origins.json", "tolerances.json"])
@pytest.mark.parametrize(
    ("content", "said"),
    [("{", r"malformed JSON \(.*\); the file is truncated"), ("[1]", "got list; expected one JSON object")],
)
def test_unreadable_json_is_refused(make_run: RunMaker, name: str, content: str, said: str) -> None:
    """In the words of the one reader of JSON files."""
    folder = make_run("broken")
    (folder / name).write_text(content)
    with pytest.raises(DataError, match=rf"{name}: {said}"):
        read_run(folder)


@pytest.mark.parametrize("content", ["a: [1", "method: {name: uecr}", "- 1", "method:\ntrain: {steps: 3}"])
def test_unreadable_configuration_is_refused(make_run: RunMaker, content: str) -> None:
    folder = make_run("broken")
    (folder / "config.yaml").write_text(content)
    with pytest.raises(RunFolderError, match=r"config\.yaml") as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)


def test_batch_without_texts_is_noted(make_run: RunMaker) -> None:
    folder = make_run("textless")
    (folder / "batches" / "step-000020.json").unlink()
    run = read_run(folder)
    assert [batch.step for batch in run.batches] == [1, 40]
    assert "step-000020.safetensors has no step-000020.json" in run.notes[0]


def test_labels_grow_until_they_differ(make_run: RunMaker) -> None:
    runs = read_runs([make_run("seed0/uecr", steps=1), make_run("seed1/uecr", steps=1)])
    assert [run.label for run in runs] == ["seed0/uecr", "seed1/uecr"]


def test_one_folder_given_twice_is_refused(make_run: RunMaker) -> None:
    folder = make_run("same", steps=1)
    with pytest.raises(RunFolderError, match="is given twice"):
        read_runs([folder, folder.parent / "." / "same"])


def test_run_before_its_first_step(make_run: RunMaker) -> None:
    folder = make_run("fresh", steps=0, evaluations=(), batches=())
    (folder / "metrics.jsonl").unlink()
    (folder / "evaluation.jsonl").unlink()
    run = read_run(folder)
    assert run.last_step == 0
    assert json.dumps(run.steps) == "[]"


ESTIMATE = {"avg": 0.1, "low": 0.0, "high": 0.2}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("metrics.jsonl", {"step": 1, "reward/task_mean": "high"}),
        ("metrics.jsonl", {"step": 1}),
        ("evaluation.jsonl", {"step": 0, "samples": 12, "average": ESTIMATE, "seconds": 1.0}),
        ("evaluation.jsonl", {"step": 0, "samples": 12, "average": {"avg": 0.1}, "sets": {}, "seconds": 1.0}),
        ("evaluation.jsonl", {"step": 0, "samples": 12, "average": ESTIMATE, "sets": {"a": ESTIMATE}}),
        (
            "evaluation.jsonl",
            {"step": 0, "samples": 12, "average": ESTIMATE, "sets": {"a": {**ESTIMATE, "pass": ""}}, "seconds": 1.0},
        ),
        ("evaluation.jsonl", {"step": 0, "samples": 12, "average": ESTIMATE, "sets": {"a": ESTIMATE}, "seconds": "1"}),
    ],
)
def test_a_record_of_the_wrong_shape_is_one_line(make_run: RunMaker, name: str, line: dict[str, object]) -> None:
    folder = make_run("run")
    (folder / name).write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(RunFolderError, match=f"{name} line 1 lacks fields or numbers"):
        read_run(folder)


def test_tolerances_that_are_no_numbers_are_refused(make_run: RunMaker) -> None:
    folder = make_run("run")
    (folder / "tolerances.json").write_text('{"budget": "small"}', encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"tolerances\.json.* budget is 'small'"):
        read_run(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": {"steps": "many"}}, "train.steps is 'many'"),
        ({"method": {"name": 7}}, "method.name is 7"),
        ({"evaluation": 3}, "evaluation is 3"),
    ],
)
def test_a_configuration_of_other_kinds_is_refused(make_run: RunMaker, change: dict[str, object], message: str) -> None:
    folder = make_run("run")
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(config | change), encoding="utf-8")
    with pytest.raises(RunFolderError, match=rf"config\.yaml: {message}; expected"):
        read_run(folder)


@pytest.mark.parametrize("key", ["benchmark", "problem", "verdict"])
def test_a_sample_without_what_the_page_reads_is_refused(make_run: RunMaker, key: str) -> None:
    folder = make_run("run")
    path = folder / "evaluations" / "step-000000.jsonl"
    first, *others = path.read_text(encoding="utf-8").splitlines()
    sample = json.loads(first)
    del sample[key]
    path.write_text("\n".join([json.dumps(sample), *others]) + "\n", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"step-000000\.jsonl line 1 is no sample"):
        read_samples(read_run(folder), 0)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1e308", "9" * 400])
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("metrics.jsonl", '{"step": 1, "reward/task_mean": NUMBER}'),
        ("evaluation.jsonl", '{"step": 0, "samples": NUMBER, "average": ESTIMATE, "sets": {}, "seconds": 1}'),
        (
            "evaluation.jsonl",
            '{"step": 0, "samples": 2, "average": {"avg": NUMBER, "low": 0, "high": 1}, "sets": {}, "seconds": 1}',
        ),
    ],
)
def test_numbers_without_a_place_on_a_chart_are_one_line(make_run: RunMaker, name: str, line: str, number: str) -> None:
    folder = make_run("run", batches=())
    written = line.replace("NUMBER", number).replace("ESTIMATE", json.dumps(ESTIMATE))
    (folder / name).write_text(written + "\n", encoding="utf-8")
    with pytest.raises(RunFolderError, match=f"{name} line 1 lacks fields or numbers"):
        read_run(folder)


@pytest.mark.parametrize("step", ["9" * 400, "-1", "true", "1.5"])
def test_a_step_that_no_run_reaches_is_one_line(make_run: RunMaker, step: str) -> None:
    folder = make_run("run", batches=())
    (folder / "metrics.jsonl").write_text(f'{{"step": {step}, "reward/task_mean": 1}}\n', encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl line 1 has no integer step"):
        read_run(folder)


def test_an_infinite_tolerance_is_refused(make_run: RunMaker) -> None:
    folder = make_run("run", batches=())
    (folder / "tolerances.json").write_text('{"budget": 1e999}', encoding="utf-8")
    with pytest.raises(RunFolderError, match="budget is inf; expected a number"):
        read_run(folder)
