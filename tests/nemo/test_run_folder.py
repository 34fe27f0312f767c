"""The folder of a run inside NeMo-RL, as the commands that read runs meet it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nemo_uecr.audit.facts import facts_of_run
from nemo_uecr.audit.sources import source_of, students_of
from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.load import written_method
from nemo_uecr.errors import CheckpointError, DataError
from nemo_uecr.evaluation.compare import differences_of
from nemo_uecr.evaluation.tables import read_rows
from nemo_uecr.nemo.recipe import section_of
from nemo_uecr.nemo.records import plain_yaml
from nemo_uecr.report.outcomes import outcome_of
from nemo_uecr.telemetry.run_folder import read_run
from tests.evaluation.test_compare import sample_file
from tests.local import tiny
from tests.nemo.made_recipe import METHOD, made

EVALUATION = {
    "every": 10, "at_start": True, "samples": 2, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": 1,
    "max_tokens": 10, "benchmarks": {"a": "a.jsonl"},
}  # fmt: skip
DATA = {
    "train": "a.jsonl", "question_key": "q", "answer_key": "a", "prompt_template": "{question}", "shuffle": True,
    "max_prompt_tokens": 64, "enable_thinking": False, "long_prompts": "drop",
}  # fmt: skip


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.run(tmp_path_factory.mktemp("local") / "run", "train.steps=1", "telemetry.save_batch_every=1")


@pytest.fixture
def run(batches: Path, tmp_path: Path) -> Path:
    """What a recipe leaves: its configuration, two evaluations, and saved batches as any run has them."""
    folder = tmp_path / "run"
    shutil.copytree(batches, folder)
    recipe = made(grpo__num_generations_per_prompt=4, uecr__evaluation=EVALUATION, uecr__data=DATA)
    whole = {**recipe, "uecr": section_of(recipe).model_dump(mode="json")}
    (folder / "config.yaml").write_text(plain_yaml(whole))
    (folder / "provenance.json").write_text(json.dumps({"versions": {}, "code": {}}))
    for name in ("metrics.jsonl", "artifacts.jsonl"):
        (folder / name).unlink()
    share = {"avg": 0.5, "low": 0.0, "high": 1.0, "problems": 2, "pass": 1.0}
    lines = []
    for step, rows in ((0, [[1, 0], [0, 0]]), (10, [[1, 1], [0, 1]])):
        sample_file(folder / "evaluations" / f"step-{step:06d}.parquet", rows, benchmark="a")
        lines.append({"step": step, "samples": 2, "sets": {"a": share}, "average": share, "seconds": 1.0})
    (folder / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_its_evaluations_are_compared_and_shown(run: Path) -> None:
    first, last = sorted((run / "evaluations").iterdir())
    assert differences_of(first, last, seed=0)["average"].difference == pytest.approx(0.5)
    (row,), samples = read_rows([str(run)])
    assert (row.method, samples) == ("uecr", 2)
    lift = outcome_of(read_run(run)).lift
    assert lift is not None
    assert lift.difference == pytest.approx(0.5)
    assert entry_point(["report", str(run)]) == 0


def test_audits_take_the_method_and_the_scores_of_the_run(run: Path) -> None:
    assert written_method(run / "config.yaml").settings()["rho"] == METHOD["rho"]
    facts = facts_of_run(run)
    assert (facts.method.name, facts.group_size, facts.limit) == ("uecr", 4, 512)
    assert entry_point(["audit", "token-credit", str(run), "--replicates", "20"]) == 0
    assert (run / "audits" / "token-credit" / "numbers.json").is_file()


def test_a_method_of_a_file_is_loaded_only_as_it_was_in_the_run(run: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("raise SystemExit('was run')\n")
    text = (run / "config.yaml").read_text().replace("name: uecr\n", f"name: {own}:Own\n")
    (run / "config.yaml").write_text(text)
    with pytest.raises(CheckpointError, match=r"uecr\.method\.name"):
        written_method(run / "config.yaml")


def test_its_students_are_named_by_the_user(run: Path) -> None:
    source = source_of(str(run / "batches" / "step-000001.parquet"), steps=None)
    assert source.teacher == "models/teacher"
    with pytest.raises(DataError, match="give --student MODEL"):
        students_of([source], None, str)
    assert students_of([source], "hf/{step}", str)(0) == "hf/0"


@pytest.mark.parametrize("words", [["audit", "batch"], ["report", "--verify"]])
def test_what_needs_the_local_back_end_says_so(run: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_point([*words, str(run)]) == 2
    assert "is of a run inside NeMo-RL; expected a run of the local back end" in capsys.readouterr().err
