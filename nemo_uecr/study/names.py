"""Rules of the study file that span its sections: every name that is used is one that exists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_uecr.study.schema import ArmConfig, StudyConfig


def check(study: StudyConfig) -> None:
    """Arms, variants and teachers that the study names.

    Raises:
        ValueError: with what was got and what was expected.
    """
    _variants(study, "selection.learning_rates_in", study.selection.learning_rates_in)
    for name, arm in study.arms.items():
        _variants(study, f"arms.{name}.variants", arm.variants or ())
        if arm.teacher == "bad_teacher" and study.task.bad_teacher is None:
            raise ValueError(f"arms.{name}.teacher: got bad_teacher, but task.bad_teacher is null; describe one")
        if arm.learning_rate_of is not None:
            _rate(study, name, arm, arm.learning_rate_of)
    for name, table in study.tables.items():
        _arms(study, f"tables.{name}", (table.reference, *table.arms))
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
