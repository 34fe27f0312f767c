"""The grid, the choice of learning rates, and the file that describes both."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.study.grid import GridCell, every_model, model_folder, selection_cells, table_cells
from benchmarks.study.results import best_rates, rates_of
from benchmarks.study.runner import forecast, time_left
from benchmarks.study.schema import StudyConfig, load_study
from nemo_uecr.config.load import flat_values, load_config
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import ConfigError, RunFolderError
from tests.benchmarks.study.small import SMALL, study_file


@pytest.fixture(scope="module")
def study() -> StudyConfig:
    return load_study(SMALL)


def selecting(study: StudyConfig, **changes: object) -> StudyConfig:
    """The study with another choice of learning rates."""
    return study.model_copy(update={"selection": study.selection.model_copy(update=changes)})


@pytest.fixture(scope="module")
def cells(study: StudyConfig) -> list[GridCell]:
    return table_cells(study, {(variant, "uecr"): 1e-4 for variant in study.variants})


@pytest.fixture(scope="module")
def configs(study: StudyConfig, cells: list[GridCell]) -> dict[tuple[str, str, int], Config]:
    return {(c.variant, c.arm, c.pair): load_config(study.config, c.overrides).config for c in cells}


def test_tables_hold_every_arm_variant_and_pair_once(study: StudyConfig, cells: list[GridCell]) -> None:
    assert Counter((cell.variant, cell.arm, cell.pair) for cell in cells) == {
        (variant, arm, pair): 1 for variant in ("one_update", "four_updates") for arm in study.arms for pair in (0, 1)
    }
    assert len({cell.folder for cell in cells}) == len(cells)
    assert [cell.pair for cell in cells] == sorted(cell.pair for cell in cells)  # balanced when it is cut short


def test_cells_differ_in_what_they_should_and_in_nothing_else(configs: dict[tuple[str, str, int], Config]) -> None:
    first = flat_values(configs["one_update", "uecr", 0])

    def different(*place: object) -> set[str]:
        return {key for key, value in flat_values(configs[place]).items() if first[key] != value}  # type: ignore[index]

    assert different("one_update", "grpo", 0) == {"run.folder", "method.name"}
    assert different("one_update", "uecr", 1) == {"run.folder", "run.seed", "student.model_name"}
    assert different("one_update", "own_teacher", 0) == {"run.folder", "teacher.model_name"}
    own = configs["one_update", "own_teacher", 1]
    assert own.teacher.model_name == own.student.model_name
    assert different("four_updates", "uecr", 0) == {
        "run.folder", "train.minibatch_responses", "train.microbatch_responses",
    }  # fmt: skip


def test_variants_have_their_own_candidates_and_selection_its_own_overrides(study: StudyConfig) -> None:
    overrides = ["evaluation.at_start=false"]
    changed = selecting(study, learning_rates_in={"four_updates": [5e-5]}, overrides=overrides)
    cells = selection_cells(changed)
    rates = [(cell.variant, cell.learning_rate) for cell in cells]
    assert rates == [("one_update", 2e-4), ("one_update", 4e-4), ("four_updates", 5e-5)]
    assert not any(load_config(study.config, cell.overrides).config.evaluation.at_start for cell in cells)
    choices = best_rates(changed, dict.fromkeys(cells, 1.0))
    assert rates_of(choices) == {("one_update", "uecr"): 2e-4, ("four_updates", "uecr"): 5e-5}


def test_selection_shares_no_student_seed_or_problem_with_the_tables(
    study: StudyConfig, configs: dict[tuple[str, str, int], Config]
) -> None:
    chosen = [load_config(study.config, cell.overrides).config for cell in selection_cells(study)]

    def used(group: list[Config]) -> set[object]:
        problems = {path for c in group for path in c.evaluation.benchmarks.values()}
        return problems | {c.student.model_name for c in group} | {c.run.seed for c in group}

    assert used(chosen).isdisjoint(used([*configs.values()]))
    assert {c.train.learning_rate for c in chosen} == {2e-4, 4e-4}


def test_variants_share_chosen_rates_and_have_their_own_students(study: StudyConfig) -> None:
    task = study.task.model_copy(update={"models": {"weak": study.task.student}})
    shared = selecting(study, same_as={"four_updates": "one_update"})
    changed = shared.model_copy(update={"task": task, "students": {"four_updates": "weak"}})
    assert {cell.variant for cell in selection_cells(changed)} == {"one_update"}
    cells = table_cells(changed, {("one_update", "uecr"): 3e-4})
    assert {cell.learning_rate for cell in cells} == {3e-4}
    four = next(cell for cell in cells if (cell.variant, cell.arm, cell.pair) == ("four_updates", "uecr", 1))
    assert f"student.model_name={model_folder(changed, 'weak_student-001')}" in four.overrides
    assert {"student-001", "weak_student-001", "selection-000", "weak_selection-000"} < every_model(changed).keys()


def test_an_arm_of_two_teachers_is_routed_by_half(study: StudyConfig) -> None:
    models = study.task.models | {"weak": study.task.student}
    arm = study.arms["uecr"].model_copy(update={"other_half": "weak"})
    task = study.task.model_copy(update={"models": models})
    two = study.model_copy(update={"arms": study.arms | {"uecr": arm}, "task": task})
    cells = table_cells(two, {(variant, "uecr"): 1e-4 for variant in study.variants})
    cell = next(cell for cell in cells if cell.arm == "uecr")
    config = load_config(two.config, cell.overrides).config
    assert {name: teacher.model_name for name, teacher in config.teachers.items()} == {
        half: str(model_folder(two, name)) for half, name in (("first", "teacher"), ("second", "weak"))
    }
    assert (config.teacher, config.routing.key) == (None, "half")
    assert "weak" in every_model(two)


def test_best_mean_wins_and_a_tie_goes_to_the_lower_rate(study: StudyConfig) -> None:
    three = selecting(study, learning_rates=[1e-4, 2e-4, 4e-4], pairs=2)
    averages = {
        "one_update": {1e-4: (0.0, 0.0), 2e-4: (30.0, 31.0), 4e-4: (40.0, 22.0)},
        "four_updates": {1e-4: (1.0, 0.0), 2e-4: (9.0, 5.0), 4e-4: (5.0, 9.0)},
    }
    finals = {cell: averages[cell.variant][cell.learning_rate][cell.pair] for cell in selection_cells(three)}
    one, four = best_rates(three, finals)
    assert (one.learning_rate, one.averages, one.at_edge) == (4e-4, {1e-4: 0.0, 2e-4: 30.5, 4e-4: 31.0}, True)
    assert (four.learning_rate, four.at_edge) == (2e-4, False)
    finals.popitem()
    with pytest.raises(RunFolderError, match=r"0\.0004 of arm uecr \(four_updates\)"):
        best_rates(three, finals)


MAP = {"p": {"r": "one_update"}}
TABLE = {"title": "x", "reference": "uecr", "arms": ["uecr", "grpo"], "on_map": False}
CLAIM = {"tables": ["t"], "against": ["grpo"], "points": 1.0}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"process": 2}, "process"),
        ({"tables": {"t": {"title": "x", "reference": "uecr", "arms": ["uecr", "nobody"]}}}, "tables.t.arms"),
        (
            {
                "map": MAP,
                "arms": {arm: {"overrides": [], "pairs": 2, "teacher": "teacher"} for arm in ("uecr.a", "uecr.b")},
                "tables": {"t": {"title": "x", "reference": "uecr.a", "arms": ["uecr.a", "uecr.b"]}},
            },
            "one arm of each method",
        ),
        (
            {
                "map": MAP,
                "arms": {arm: {"overrides": [], "pairs": 2, "teacher": "teacher"} for arm in ("uecr.a", "uecr.b")},
                "tables": {"t": TABLE | {"reference": "uecr.a", "arms": ["uecr.a", "uecr.b"]}},
                "claims": {"c": CLAIM},
            },
            "one arm of each method",
        ),
        ({"map": MAP, "tables": {"t": TABLE}, "claims": {"c": CLAIM | {"against": ["uecr"]}}}, "claims.c.against"),
        ({"tables": {"t": TABLE}, "claims": {"c": CLAIM}}, "rows of a map"),
        ({"arms": {"uecr": {"overrides": [], "pairs": 2, "teacher": "nobody"}}}, "arms.uecr.teacher"),
    ],
)
def test_faulty_study_file(tmp_path: Path, changes: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_study(study_file(tmp_path, **changes))


def test_a_claim_may_be_about_a_table_that_is_not_on_the_map(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, map=MAP, tables={"t": TABLE}, claims={"c": CLAIM}))
    assert (list(study.claims), list(study.mapped)) == (["c"], [])


def test_budget_and_progress_count_what_is_missing(study: StudyConfig, tmp_path: Path) -> None:
    small = study.model_copy(update={"folder": str(tmp_path / "study")})
    # 1 teacher, 2 students and 1 for the rates; 2 rates in each of 2 variants; 3 arms, 2 variants, 2 pairs
    # 4 models of 4 s and 16 runs of 3 s, two at once: (16 + 48) / 2 = 32 s
    todo, times = forecast(small)
    assert todo == "to do: 4 models, 4 runs to choose learning rates, 12 runs for the tables"
    assert times.endswith("2 at once: about 0.01 hours")
    for name, seconds in (("teacher", 1000.0), ("student-000", 3000.0)):
        model_folder(small, name).mkdir(parents=True)
        (model_folder(small, name) / "teaching.json").write_text(f'{{"seconds": {seconds}, "last_loss": 1.0}}')
    todo, times = forecast(small)
    assert todo.startswith("to do: 2 models")
    assert times.startswith("2000 s per model")
    assert times.endswith("about 0.56 hours")  # (2 * 2000 + 16 * 3) / 2 / 3600
    assert time_left([], 3, 2) == time_left([5.0], 0, 2) == ""
    assert time_left([10.0, 20.0], 4, 2) == ", about 30 s left"
