"""The grid of a study: its problems, models and training runs, with their overrides and folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.study.schema import ArmConfig, StudyConfig
from nemo_uecr.config.load import flat_values, flattened, load_config, override_layer
from nemo_uecr.config.schema import Config
from nemo_uecr.demo.supervised import ModelConfig
from nemo_uecr.demo.task import LEVELS
from nemo_uecr.errors import ConfigError, RunFolderError
from nemo_uecr.telemetry.run_folder import RunFolder, read_run

#: First seed of the runs that choose learning rates; those of the tables count from 0.
SELECTION_SEED = 1_000_000
#: Settings that differ between the pairs of an arm, or change when a study is moved.
OF_THE_PAIR = (
    "run.folder", "run.seed", "student.model_name", "teacher.model_name", "teachers", "data.train",
    "evaluation.benchmarks",
)  # fmt: skip
#: Settings that the study sets for every run; an override would silently have no effect.
OWN = (*OF_THE_PAIR, "routing", "train.learning_rate", "threads", "telemetry.progress")
#: The column of the training problems that alternates between these two, the names of an arm's two teachers.
HALF, HALVES = "half", ("first", "second")


@dataclass(frozen=True)
class GridCell:
    """One training run."""

    arm: str  # line of the tables
    variant: str  # named set of overrides
    pair: int  # number of the student, and seed of the run
    learning_rate: float
    overrides: tuple[str, ...]  # all differences from the shared configuration
    folder: Path
    selection: bool  # the run chooses a learning rate; otherwise it belongs to the tables


# Problems and models


def task_folder(study: StudyConfig) -> Path:
    """Folder of the study's problems and models."""
    return (Path(study.folder) / "task").resolve()


def held_out(study: StudyConfig, kind: str) -> dict[str, Path]:
    """The five sets of a kind ("bench" or "validation") by name."""
    return {f"level{level}": task_folder(study) / "problems" / f"{kind}-level{level}.jsonl" for level in LEVELS}


def model_folder(study: StudyConfig, name: str) -> Path:
    """Hugging Face folder of a model."""
    return task_folder(study) / "models" / name


def student_name(level: str, pair: int, *, selection: bool) -> str:
    """Name of a pair's student; learning rates are chosen on other students than the tables'."""
    prefix = "" if level == "student" else f"{level}_"
    return f"{prefix}{'selection' if selection else 'student'}-{pair:03d}"


def every_model(study: StudyConfig) -> dict[str, ModelConfig]:
    """Every model of the study by name, trained or not."""
    described = {"teacher": study.task.teacher, "student": study.task.student} | study.task.models
    named = (name for arm in study.arms.values() for name in (arm.teacher, arm.other_half))
    teachers = [name for name in dict.fromkeys(named) if name not in ("student", None)]
    models = {teacher: described[teacher] for teacher in teachers}
    for level in dict.fromkeys(map(study.level, study.variants)):
        for pairs, selection in ((study.pair_count, False), (study.selection.pairs, True)):
            names = (student_name(level, pair, selection=selection) for pair in range(pairs))
            models |= dict.fromkeys(names, described[level])
    return models


# Runs


def every_cell(study: StudyConfig) -> list[GridCell]:
    """Every run; those of the tables have a provisional learning rate."""
    first = study.selection.learning_rates[0]
    rates = {(variant, arm): first for variant in study.variants for arm in study.arms}
    return [*selection_cells(study), *table_cells(study, rates)]


def selection_cells(study: StudyConfig) -> list[GridCell]:
    """Runs that choose the learning rates: for every arm and variant that does not take another's."""
    return [
        _cell(study, name, variant, pair, rate, selection=True)
        for variant in study.variants
        if study.rates_in(variant) == variant
        for name in study.tuned(variant)
        for rate in study.candidates(variant)
        for pair in range(study.selection.pairs)
    ]


def table_cells(study: StudyConfig, rates: Mapping[tuple[str, str], float]) -> list[GridCell]:
    """Runs of the tables by stage, then by pair, so that an unfinished study is balanced over arms.

    `rates` has the chosen learning rates by (variant, arm).
    """
    return [
        _cell(study, name, variant, pair, rates[study.rates_in(variant), arm.learning_rate_of or name], selection=False)
        for stage in sorted({arm.stage for arm in study.arms.values()})
        for pair in range(study.pair_count)
        for variant in study.variants
        for name, arm in study.arms.items()
        if arm.stage == stage and pair < arm.pairs and variant in study.variants_of(arm)
    ]


def _cell(study: StudyConfig, name: str, variant: str, pair: int, rate: float, *, selection: bool) -> GridCell:
    arm = study.arms[name]
    parent = Path(study.folder) / ("selection" if selection else "runs") / variant / name
    folder = (parent / f"lr-{rate!r}" if selection else parent) / f"pair-{pair:03d}"
    student = student_name(study.level(variant), pair, selection=selection)
    benchmarks = held_out(study, "validation" if selection else "bench")
    own = (  # the keys of OWN
        f"run.folder={folder}",
        f"run.seed={pair + (SELECTION_SEED if selection else 0)}",
        f"student.model_name={model_folder(study, student)}",
        *_teachers(study, arm, student),
        f"data.train={task_folder(study) / 'problems' / 'train.jsonl'}",
        *(f"evaluation.benchmarks.{name}={path}" for name, path in benchmarks.items()),
        f"train.learning_rate={rate!r}",
        "threads=1",
        "telemetry.progress=off",
    )
    stage = study.selection.overrides if selection else ()
    overrides = (*study.overrides, *study.variants[variant], *arm.overrides, *stage, *own)
    return GridCell(name, variant, pair, rate, overrides, folder, selection)


def _teachers(study: StudyConfig, arm: ArmConfig, student: str) -> list[str]:
    """Overrides that give an arm its teacher, or its two."""
    folders = [
        model_folder(study, student if name == "student" else name) for name in (arm.teacher, arm.other_half) if name
    ]
    if arm.other_half is None:
        return [f"teacher.model_name={folders[0]}"]
    two = (f"teachers.{half}.model_name={folder}" for half, folder in zip(HALVES, folders, strict=True))
    return ["teacher=null", *two, f"routing.key={HALF}"]


def check_overrides(study: StudyConfig) -> None:
    """Load each arm in each variant and stage; reject overrides of `OWN`."""
    stated = {"overrides": study.overrides, "selection.overrides": study.selection.overrides}
    stated |= {f"variants.{name}": texts for name, texts in study.variants.items()}
    stated |= {f"arms.{name}.overrides": arm.overrides for name, arm in study.arms.items()}
    for where, text in ((where, text) for where, texts in stated.items() for text in texts):
        for key in override_layer(text, Config).origins:  # student=null removes the keys below it
            own = next((own for own in OWN if f"{own}.".startswith(f"{key}.") or key.startswith(f"{own}.")), None)
            if own is not None:
                raise ConfigError(f"{where}: got {text}; every run gets its {own} from the study. Leave it out")
    for cell in {(cell.variant, cell.arm, cell.selection): cell for cell in every_cell(study)}.values():
        load_config(study.config, cell.overrides)


# Finished runs


def finished_run(folder: Path) -> RunFolder | None:
    """The run of a folder, or None without its last step and last evaluation."""
    if not (folder / "config.yaml").is_file():
        return None
    run = read_run(folder)
    return run if run.complete else None


def finished_runs(study: StudyConfig, cells: Iterable[GridCell]) -> Iterator[tuple[GridCell, RunFolder]]:
    """The finished cells with their runs; runs of another study file are an error."""
    expected = dict[tuple[object, ...], dict[str, object]]()
    for cell in cells:
        run = finished_run(cell.folder)
        if run is None:
            continue
        kind = (cell.variant, cell.arm, cell.learning_rate, cell.selection)  # pairs differ in OF_THE_PAIR alone
        if kind not in expected:
            expected[kind] = flat_values(load_config(study.config, cell.overrides).config)
        for key, value in flattened(run.config).items():
            wanted = expected[kind].get(key, value)
            if value != wanted and not key.startswith(OF_THE_PAIR):
                raise RunFolderError(
                    f"{cell.folder} was trained with {key}={value}, but the study has {wanted}; choose another study "
                    "folder, or restore the study file"
                )
        yield cell, run
