"""Chooses the learning rate of each arm on students and problems that no table uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_uecr.errors import RunFolderError
from nemo_uecr.study.results import RunResult
from nemo_uecr.study.schema import StudyConfig

RULE = "highest mean validation average after the last step; of equal ones the lower rate"


@dataclass(frozen=True)
class Choice:
    """A chosen rate with the validation averages of every candidate, in percent."""

    variant: str
    arm: str
    learning_rate: float
    averages: dict[float, float]
    at_edge: bool


def choose_rates(study: StudyConfig, results: Sequence[RunResult]) -> list[Choice]:
    """The choice for every arm that has one of its own.

    Raises:
        RunFolderError: a candidate has fewer finished runs than the study asks for.
    """
    choices = []
    for variant in study.variants:
        for arm in study.tuned(variant):
            averages = {}
            for rate in study.candidates(variant):
                finals = [
                    result.final
                    for result in results
                    if (result.cell.variant, result.cell.arm, result.cell.learning_rate) == (variant, arm, rate)
                ]
                if len(finals) < study.selection.pairs:
                    raise RunFolderError(
                        f"learning rate {rate:g} of arm {arm} ({variant}) has {len(finals)} of "
                        f"{study.selection.pairs} finished runs; run the study again to complete them"
                    )
                averages[rate] = sum(finals) / len(finals)
            best = min(averages, key=lambda rate: (-averages[rate], rate))
            edge = len(averages) > 1 and best in (min(averages), max(averages))
            choices.append(Choice(variant, arm, best, averages, edge))
    return choices


def rates_of(choices: Sequence[Choice]) -> dict[tuple[str, str], float]:
    """Chosen rate by (variant, arm)."""
    return {(choice.variant, choice.arm): choice.learning_rate for choice in choices}
