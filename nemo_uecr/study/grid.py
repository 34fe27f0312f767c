"""The grid of a study: its problems, models and training runs, each with its overrides and its folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.config.load import flat_values, flattened, load_config, override_layer
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import ConfigError, RunFolderError
from nemo_uecr.study.schema import ModelConfig, StudyConfig
from nemo_uecr.study.task import LEVELS
from nemo_uecr.telemetry.run_folder import RunFolder, read_run

#: Seeds of the runs that choose learning rates; those of the tables count from 0.
SELECTION_SEED = 1_000_000
#: Every run gets these from the study; an override would be overruled, and nobody would see it.
OWN = (
    "run.folder", "run.seed", "student.model_name", "teacher.model_name", "data.train", "evaluation.benchmarks",
    "train.learning_rate", "threads", "telemetry.progress",
)  # fmt: skip
#: Of these, what the folder of a run stands for: paths change when a study is moved.
PLACE = OWN[:6]


@dataclass(frozen=True)
class Cell:
    """One training run."""

    arm: str  # line of the tables
    variant: str  # named set of overrides
    pair: int  # number of the student, which is also the seed of the run
    learning_rate: float
    overrides: tuple[str, ...]  # everything that differs from the shared configuration
    folder: Path
    selection: bool  # whether it chooses a learning rate; otherwise it is one of the tables


# Problems and models


def task_folder(study: StudyConfig) -> Path:
    """Where the study's problems and models lie."""
    return (Path(study.folder) / "task").resolve()


def held_out(study: StudyConfig, kind: str) -> dict[str, Path]:
    """The five sets of a kind, "bench" or "validation", by name."""
    return {f"level{level}": task_folder(study) / "problems" / f"{kind}-level{level}.jsonl" for level in LEVELS}


def model_folder(study: StudyConfig, name: str) -> Path:
    """Hugging Face folder of a model."""
    return task_folder(study) / "models" / name


def student_name(level: str, pair: int, *, selection: bool) -> str:
    """Name of the student of a pair; the students that learning rates are chosen on are others."""
    prefix = "" if level == "student" else f"{level}_"
    return f"{prefix}{'selection' if selection else 'student'}-{pair:03d}"


def every_model(study: StudyConfig) -> dict[str, ModelConfig]:
    """Every model of the study by name, missing or not."""
    described = {"teacher": study.task.teacher, "student": study.task.student} | study.task.models
    teachers = dict.fromkeys(arm.teacher for arm in study.arms.values() if arm.teacher != "student")
    models = {teacher: described[teacher] for teacher in teachers}
    for level in dict.fromkeys(map(study.level, study.variants)):
        for pairs, selection in ((study.pair_count, False), (study.selection.pairs, True)):
            names = (student_name(level, pair, selection=selection) for pair in range(pairs))
            models |= dict.fromkeys(names, described[level])
    return models


# Runs


def every_cell(study: StudyConfig) -> list[Cell]:
    """Every run, those behind the tables with a candidate for rates that are not chosen yet."""
    first = study.selection.learning_rates[0]
    rates = {(variant, arm): first for variant in study.variants for arm in study.arms}
    return [*selection_cells(study), *table_cells(study, rates)]


def selection_cells(study: StudyConfig) -> list[Cell]:
    """Runs that choose a learning rate for every arm that has its own, in every variant that takes no other's."""
    return [
        _cell(study, name, variant, pair, rate, selection=True)
        for variant in study.variants
        if study.rates_in(variant) == variant
        for name in study.tuned(variant)
        for rate in study.candidates(variant)
        for pair in range(study.selection.pairs)
    ]


def table_cells(study: StudyConfig, rates: Mapping[tuple[str, str], float]) -> list[Cell]:
    """Runs behind the tables, by stage; within one pairs come first, so that an unfinished study is balanced over arms.

    `rates` has the learning rate by (variant, arm) of every arm with a choice of its own.
    """
    return [
        _cell(study, name, variant, pair, rates[study.rates_in(variant), arm.learning_rate_of or name], selection=False)
        for stage in sorted({arm.stage for arm in study.arms.values()})
        for pair in range(study.pair_count)
        for variant in study.variants
        for name, arm in study.arms.items()
        if arm.stage == stage and pair < arm.pairs and variant in study.variants_of(arm)
    ]


def _cell(study: StudyConfig, name: str, variant: str, pair: int, rate: float, *, selection: bool) -> Cell:
    arm = study.arms[name]
    parent = Path(study.folder) / ("selection" if selection else "runs") / variant / name
    folder = (parent / f"lr-{rate!r}" if selection else parent) / f"pair-{pair:03d}"
    student = student_name(study.level(variant), pair, selection=selection)
    benchmarks = held_out(study, "validation" if selection else "bench")
    own = (  # the keys of OWN
        f"run.folder={folder}",
        f"run.seed={pair + (SELECTION_SEED if selection else 0)}",
        f"student.model_name={model_folder(study, student)}",
        f"teacher.model_name={model_folder(study, student if arm.teacher == 'student' else arm.teacher)}",
        f"data.train={task_folder(study) / 'problems' / 'train.jsonl'}",
        *(f"evaluation.benchmarks.{name}={path}" for name, path in benchmarks.items()),
        f"train.learning_rate={rate!r}",
        "threads=1",
        "telemetry.progress=off",
    )
    stage = study.selection.overrides if selection else ()
    overrides = (*study.overrides, *study.variants[variant], *arm.overrides, *stage, *own)
    return Cell(name, variant, pair, rate, overrides, folder, selection)


def check_overrides(study: StudyConfig) -> None:
    """Load each arm in each variant and stage, and refuse overrides of what the study says itself."""
    stated = {"overrides": study.overrides, "selection.overrides": study.selection.overrides}
    stated |= {f"variants.{name}": texts for name, texts in study.variants.items()}
    stated |= {f"arms.{name}.overrides": arm.overrides for name, arm in study.arms.items()}
    for where, text in ((where, text) for where, texts in stated.items() for text in texts):
        for key in override_layer(text, Config).origins:  # student=null takes away what stands below it
            own = next((own for own in OWN if f"{own}.".startswith(f"{key}.") or key.startswith(f"{own}.")), None)
            if own is not None:
                raise ConfigError(f"{where}: got {text}; every run gets its {own} from the study. Leave it out")
    for cell in {(cell.variant, cell.arm, cell.selection): cell for cell in every_cell(study)}.values():
        load_config(study.config, cell.overrides)


# Finished runs


def finished_run(folder: Path) -> RunFolder | None:
    """The run of a folder that holds its last step and last evaluation; None where it does not."""
    if not (folder / "provenance.json").is_file():
        return None
    run = read_run(folder)
    return run if run.complete else None


def finished_runs(study: StudyConfig, cells: Iterable[Cell]) -> Iterator[tuple[Cell, RunFolder]]:
    """The cells that are finished, with their runs; a changed study file must not take old runs for its own."""
    expected = dict[tuple[object, ...], dict[str, object]]()
    for cell in cells:
        run = finished_run(cell.folder)
        if run is None:
            continue
        kind = (cell.variant, cell.arm, cell.learning_rate, cell.selection)  # its pairs differ in PLACE alone
        if kind not in expected:
            expected[kind] = flat_values(load_config(study.config, cell.overrides).config)
        for key, found in flattened(run.config).items():
            wanted = expected[kind].get(key, found)
            if found != wanted and not key.startswith(PLACE):
                raise RunFolderError(
                    f"{cell.folder} was trained with {key}={found}, this study asks for {wanted}; choose another "
                    "study folder, or put the study file back"
                )
        yield cell, run
