"""The grid, the choice of learning rates, and the file that describes both."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nemo_uecr.config.load import load_config
from nemo_uecr.errors import ConfigError, RunFolderError
from nemo_uecr.study.cells import selection_cells, table_cells
from nemo_uecr.study.load import load_study
from nemo_uecr.study.schema import StudyConfig
from nemo_uecr.study.selection import choose_rates, rates_of
from nemo_uecr.study.study import forecast
from nemo_uecr.study.task import task_files
from tests.study.made import made_result

SMALL = Path(__file__).resolve().parents[2] / "examples" / "configs" / "study" / "small.yaml"


@pytest.fixture(scope="module")
def study() -> StudyConfig:
    return load_study(SMALL)


def written(folder: Path, **changes: object) -> Path:
    content = yaml.safe_load(SMALL.read_text()) | {"config": str(SMALL.parent / "../local/demo.yaml")} | changes
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_tables_hold_every_arm_variant_and_pair_once(study: StudyConfig) -> None:
    rates = {(variant, arm): 1e-4 for variant in study.variants for arm in study.arms}
    cells = table_cells(study, rates)
    assert Counter((cell.variant, cell.arm, cell.pair) for cell in cells) == {
        (variant, arm, pair): 1 for variant in ("one_update", "four_updates") for arm in study.arms for pair in (0, 1)
    }
    assert len({cell.folder for cell in cells}) == len(cells)
    assert [cell.pair for cell in cells] == sorted(cell.pair for cell in cells)  # balanced when it is cut short


def test_cells_differ_in_what_they_should_and_in_nothing_else(study: StudyConfig) -> None:
    rates = {(variant, "uecr"): 1e-4 for variant in study.variants}
    cells = table_cells(study, rates)
    configs = {(c.variant, c.arm, c.pair): load_config(study.config, c.overrides).config for c in cells}

    def different(first: tuple[str, str, int], second: tuple[str, str, int]) -> set[str]:
        a, b = (configs[key].model_dump() for key in (first, second))
        return {
            f"{section}.{key}" if isinstance(a[section], dict) else section
            for section in a
            for key in (a[section] if isinstance(a[section], dict) else [section])
            if (a[section][key] if isinstance(a[section], dict) else a[section])
            != (b[section][key] if isinstance(b[section], dict) else b[section])
        }

    uecr = ("one_update", "uecr", 0)
    assert different(uecr, ("one_update", "grpo", 0)) == {"run.folder", "method.name"}
    assert different(uecr, ("one_update", "uecr", 1)) == {"run.folder", "run.seed", "student.model_name"}
    assert different(uecr, ("one_update", "own_teacher", 0)) == {"run.folder", "teacher.model_name"}
    own = configs["one_update", "own_teacher", 1]
    assert own.teacher.model_name == own.student.model_name
    assert different(uecr, ("four_updates", "uecr", 0)) == {
        "run.folder", "train.minibatch_responses", "train.microbatch_responses",
    }  # fmt: skip


def test_variants_have_their_own_candidates_and_selection_its_own_overrides(study: StudyConfig) -> None:
    selection = study.selection.model_copy(
        update={"learning_rates_in": {"four_updates": (5e-5,)}, "overrides": ("evaluation.at_start=false",)}
    )
    changed = study.model_copy(update={"selection": selection})
    cells = selection_cells(changed)
    assert [(cell.variant, cell.learning_rate) for cell in cells] == [
        ("one_update", 2e-4), ("one_update", 4e-4), ("four_updates", 5e-5),
    ]  # fmt: skip
    assert not any(load_config(study.config, cell.overrides).config.evaluation.at_start for cell in cells)
    choices = choose_rates(changed, [made_result(cell, 1.0) for cell in cells])
    assert rates_of(choices) == {("one_update", "uecr"): 2e-4, ("four_updates", "uecr"): 5e-5}


def test_selection_shares_no_student_seed_or_problem_with_the_tables(study: StudyConfig) -> None:
    chosen = [load_config(study.config, cell.overrides).config for cell in selection_cells(study)]
    rates = {(variant, "uecr"): 1e-4 for variant in study.variants}
    shown = [load_config(study.config, cell.overrides).config for cell in table_cells(study, rates)]
    assert {c.student.model_name for c in chosen}.isdisjoint({c.student.model_name for c in shown})
    assert {c.run.seed for c in chosen}.isdisjoint({c.run.seed for c in shown})
    assert {p for c in chosen for p in c.evaluation.benchmarks.values()}.isdisjoint(
        {p for c in shown for p in c.evaluation.benchmarks.values()}
    )
    assert {c.train.learning_rate for c in chosen} == {2e-4, 4e-4}


def test_best_mean_wins_and_a_tie_goes_to_the_lower_rate(study: StudyConfig) -> None:
    cells = selection_cells(study)
    finals = {
        ("one_update", 2e-4): 30.0,
        ("one_update", 4e-4): 31.0,
        ("four_updates", 2e-4): 7.0,
        ("four_updates", 4e-4): 7.0,
    }
    results = [made_result(cell, finals[cell.variant, cell.learning_rate]) for cell in cells]
    choices = choose_rates(study, results)
    assert rates_of(choices) == {("one_update", "uecr"): 4e-4, ("four_updates", "uecr"): 2e-4}
    assert all(choice.at_edge for choice in choices)  # two candidates: either is an end
    with pytest.raises(RunFolderError, match=r"learning rate 0\.0002 of arm uecr \(one_update\) has 0 of 1"):
        choose_rates(study, results[1:])
    three = study.model_copy(
        update={"selection": study.selection.model_copy(update={"learning_rates": (1e-4, 2e-4, 4e-4)})}
    )
    middle = [*results, *(replace(r, cell=replace(r.cell, learning_rate=1e-4), final=0.0) for r in results[::2])]
    best = {choice.variant: choice for choice in choose_rates(three, middle)}
    assert best["one_update"].at_edge
    assert not best["four_updates"].at_edge


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"process": 2}, "unknown key process; the nearest known key is processes"),
        ({"tables": {"t": {"title": "x", "reference": "uecr", "arms": ["uecr", "nobody"]}}}, "no arm 'nobody'"),
        (
            {"arms": {"uecr": {"overrides": [], "pairs": 2, "teacher": "bad_teacher", "learning_rate_of": None}}},
            "arms.uecr.teacher: got bad_teacher, but task.bad_teacher is null",
        ),
        (
            {"selection": {"learning_rates": [1e-4, 1.0000001e-4], "pairs": 1}},
            "selection.learning_rates: 2 candidates would share the folder lr-0.0001",
        ),
    ],
)
def test_faulty_study_file(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_study(written(tmp_path, **changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_budget_counts_the_models(study: StudyConfig, tmp_path: Path) -> None:
    small = study.model_copy(update={"folder": str(tmp_path / "study")})
    begun = forecast(small)
    # 1 teacher, 2 students and 1 for the rates; 2 rates in each of 2 variants; 3 arms, 2 variants, 2 pairs
    assert (begun.models, begun.selection_runs, begun.table_runs) == (4, 4, 12)
    # 4 models of 4 s and 16 runs of 3 s, two at once: (16 + 48) / 2 = 32 s
    assert begun.hours == pytest.approx(32 / 3600)
    assert begun.lines()[1] == (
        "4 s a model (expected_model_seconds of the study file), 3 s a run (expected_run_seconds of the study file), "
        "2 at once: about 0.01 hours"
    )
    files = task_files(small)
    for name, seconds in (("teacher", 10.0), ("student-000", 30.0)):
        files.model(name).mkdir(parents=True)
        (files.model(name) / "teaching.json").write_text(f'{{"seconds": {seconds}, "last_loss": 1.0}}')
    later = forecast(small)
    assert later.models == 2
    assert later.hours == pytest.approx((2 * 20 + 16 * 3) / 2 / 3600)  # (10 + 30) / 2 = 20 s a model
    assert "20 s a model (mean of those taught)" in later.lines()[1]
