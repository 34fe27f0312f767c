"""Rules of the study file that span its sections: every name that is used exists and can name a file, once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nemo_uecr.demo.task import LEVELS, question_count

if TYPE_CHECKING:
    from nemo_uecr.study.schema import ArmConfig, ModelConfig, StudyConfig, TaskConfig

#: Names of arms, variants and tables become those of folders and files.
LONGEST_NAME = 100
FILE_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}")


def check(study: StudyConfig) -> None:
    """Sizes of models, and the arms, variants, rates and teachers that the study names.

    Raises:
        ValueError: with what was got and what was expected.
    """
    _names_and_sizes(study)
    _arms_of(study)
    _shown(study)


def _names_and_sizes(study: StudyConfig) -> None:
    for section, names in (("arms", study.arms), ("variants", study.variants), ("tables", study.tables)):
        _file_names(section, names)
    task = study.task
    _enough_questions(task)
    for where, model in (("student", task.student), ("teacher", task.teacher), ("bad_teacher", task.bad_teacher)):
        if model is not None:
            _sizes(f"task.{where}", model)
    _rates_apart("selection.learning_rates", study.selection.learning_rates)
    for variant, rates in study.selection.learning_rates_in.items():
        _rates_apart(f"selection.learning_rates_in.{variant}", rates)
    _variants(study, "selection.learning_rates_in", study.selection.learning_rates_in)


def _arms_of(study: StudyConfig) -> None:
    for name, arm in study.arms.items():
        _variants(study, f"arms.{name}.variants", study.variants_of(arm))
        _once(f"arms.{name}.variants", study.variants_of(arm))
        if not study.variants_of(arm):
            raise ValueError(f"arms.{name}.variants: got an empty list; name one, or write null for all of them")
    for name, arm in study.arms.items():
        if arm.teacher == "bad_teacher" and study.task.bad_teacher is None:
            raise ValueError(f"arms.{name}.teacher: got bad_teacher, but task.bad_teacher is null; describe one")
        if arm.learning_rate_of is not None:
            _rate(study, name, arm, arm.learning_rate_of)


def _shown(study: StudyConfig) -> None:
    for name, table in study.tables.items():
        _arms(study, f"tables.{name}", (table.reference, *table.arms))
        _once(f"tables.{name}.arms", table.arms)
        if table.reference not in table.arms:
            raise ValueError(
                f"tables.{name}.reference: got {table.reference!r}, expected one of its arms: {', '.join(table.arms)}"
            )
    for name, panel in study.sensitivity.items():
        _arms(study, f"sensitivity.{name}", panel.points)
        if panel.default not in panel.points:
            raise ValueError(f"sensitivity.{name}.default: got {panel.default!r}, expected one of its points")


def _rate(study: StudyConfig, name: str, arm: ArmConfig, source: str) -> None:
    chosen = study.arms.get(source)
    if chosen is None:
        raise ValueError(f"arms.{name}.learning_rate_of: got {source!r}, expected an arm's name")
    if chosen.learning_rate_of is not None or not set(study.variants_of(arm)) <= set(study.variants_of(chosen)):
        raise ValueError(
            f"arms.{name}.learning_rate_of: got {source!r}, expected one that chooses its own rate in the same variants"
        )


def _variants(study: StudyConfig, where: str, given: Iterable[str]) -> None:
    for variant in given:
        if variant not in study.variants:
            raise ValueError(f"{where}: got {variant!r}, expected one of {', '.join(study.variants)}")


def _arms(study: StudyConfig, where: str, given: Iterable[str]) -> None:
    for name in given:
        if name not in study.arms:
            raise ValueError(f"{where}: no arm {name!r}; expected one of {', '.join(study.arms)}")


def folder_of_rate(rate: float) -> str:
    """Name of the folder of the runs with a candidate."""
    return f"lr-{rate:g}"


def _file_names(section: str, given: Iterable[str]) -> None:
    for name in given:
        if FILE_NAME.fullmatch(name) is None:
            raise ValueError(
                f"{section}.{name}: the name becomes that of a folder; expected at most {LONGEST_NAME} letters, "
                "digits, '_', '-' and '.', the last two not in front"
            )


def _enough_questions(task: TaskConfig) -> None:
    """No level gives more than half of its questions: drawing the last ones would hardly end."""
    held_out = task.bench_problems + task.validation_problems
    for level in LEVELS:
        share = task.train_levels.count(level) / len(task.train_levels)
        wanted, most = held_out + round(share * task.train_problems), question_count(level) // 2
        if wanted > most:
            raise ValueError(
                f"task: bench_problems, validation_problems and train_problems ask for {wanted} different questions of "
                f"level {level}; expected at most {most}, half of those that there are. Ask for fewer"
            )


def _sizes(where: str, model: ModelConfig) -> None:
    if model.heads % model.key_value_heads:
        raise ValueError(
            f"{where}: got heads {model.heads} and key_value_heads {model.key_value_heads}; expected heads to be a "
            "multiple of key_value_heads, because every key and value head serves as many query heads"
        )
    if model.head_dim % 2:
        raise ValueError(f"{where}.head_dim: got {model.head_dim}; expected an even number for rotary positions")


def _rates_apart(where: str, rates: Iterable[float]) -> None:
    for folder, count in Counter(map(folder_of_rate, rates)).items():
        if count > 1:
            raise ValueError(
                f"{where}: {count} candidates would share the folder {folder}; expected rates that differ in their "
                "first six digits"
            )


def _once(where: str, given: Iterable[str]) -> None:
    repeated = [name for name, count in Counter(given).items() if count > 1]
    if repeated:
        raise ValueError(f"{where}: got {', '.join(repeated)} more than once; name each once")
