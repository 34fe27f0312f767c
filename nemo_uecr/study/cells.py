"""The grid: every training run of a study with its overrides and its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.study.names import folder_of_rate
from nemo_uecr.study.schema import ArmConfig, StudyConfig
from nemo_uecr.study.task import TaskFiles, student_name, task_files

#: Seeds of the runs that choose learning rates; those of the tables count from 0.
SELECTION_SEED = 1_000_000


@dataclass(frozen=True)
class Cell:
    """One training run.

    Attributes:
        arm: line of the tables.
        variant: named set of overrides.
        pair: number of the student, which is also the seed of the run.
        learning_rate: what the optimizer uses.
        overrides: everything that differs from the shared configuration.
        folder: run folder.
        selection: whether it chooses a learning rate; otherwise it is one of the tables.
    """

    arm: str
    variant: str
    pair: int
    learning_rate: float
    overrides: tuple[str, ...]
    folder: Path
    selection: bool


def every_cell(study: StudyConfig) -> tuple[list[Cell], list[Cell]]:
    """Runs that choose learning rates, and those behind the tables with a candidate for rates not chosen yet."""
    first = study.selection.learning_rates[0]
    rates = {(variant, arm): first for variant in study.variants for arm in study.arms}
    return selection_cells(study), table_cells(study, rates)


def selection_cells(study: StudyConfig) -> list[Cell]:
    """Runs that choose a learning rate for every arm that has its own, in every variant."""
    files, parent = task_files(study), Path(study.folder) / "selection"
    return [
        _cell(study, files, name, variant, pair, rate, parent / variant / name / folder_of_rate(rate), True)
        for variant in study.variants
        for name in study.tuned(variant)
        for rate in study.candidates(variant)
        for pair in range(study.selection.pairs)
    ]


def table_cells(study: StudyConfig, learning_rates: Mapping[tuple[str, str], float]) -> list[Cell]:
    """Runs behind the tables, by stage; within one pairs come first, so that an unfinished study is balanced over arms.

    Args:
        study: the study.
        learning_rates: by (variant, arm) for every arm with a choice of its own.
    """
    stages = sorted({arm.stage for arm in study.arms.values()})
    return [cell for stage in stages for cell in _by_pair(study, stage, learning_rates)]


def _by_pair(study: StudyConfig, stage: int, learning_rates: Mapping[tuple[str, str], float]) -> Iterator[Cell]:
    files, parent = task_files(study), Path(study.folder) / "runs"
    arms = {name: arm for name, arm in study.arms.items() if arm.stage == stage}
    for pair in range(study.pair_count):
        for variant in study.variants:
            for name, arm in arms.items():
                if pair < arm.pairs and variant in study.variants_of(arm):
                    rate = learning_rates[variant, arm.learning_rate_of or name]
                    yield _cell(study, files, name, variant, pair, rate, parent / variant / name, False)


def _cell(
    study: StudyConfig,
    files: TaskFiles,
    name: str,
    variant: str,
    pair: int,
    rate: float,
    parent: Path,
    selection: bool,
) -> Cell:
    arm = study.arms[name]
    folder = parent / f"pair-{pair:03d}"
    student = files.model(student_name(pair, selection=selection))
    own = (  # the keys of `overrides.OWN`
        f"run.folder={folder}",
        f"run.seed={pair + (SELECTION_SEED if selection else 0)}",
        f"student.model_name={student}",
        f"teacher.model_name={_teacher(arm, files, student)}",
        f"data.train={files.train}",
        f"train.learning_rate={rate!r}",
        "threads=1",
        "telemetry.progress=off",
        *(f"evaluation.benchmarks.{n}={p}" for n, p in files.held_out("validation" if selection else "bench").items()),
    )
    stage = study.selection.overrides if selection else ()
    overrides = (*study.overrides, *study.variants[variant], *arm.overrides, *stage, *own)
    return Cell(name, variant, pair, rate, overrides, folder, selection)


def _teacher(arm: ArmConfig, files: TaskFiles, student: Path) -> Path:
    return student if arm.teacher == "student" else files.model(arm.teacher)
