"""What a setting changes: the arms of a panel, compared on the pairs that all of them have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_uecr.stats import Mean, mean_interval, paired_difference
from nemo_uecr.study.results import RunResult
from nemo_uecr.study.schema import SensitivityConfig, StudyConfig
from nemo_uecr.study.summary import LEAST_PAIRS


@dataclass(frozen=True)
class Point:
    """One value of a setting.

    Attributes:
        arm: whose runs.
        value: of the setting.
        final: average of the sets after the last step, over the common pairs.
        against: this arm minus the default's, pair by pair; None for the default itself.
    """

    arm: str
    value: float
    final: Mean
    against: Mean | None


@dataclass(frozen=True)
class Panel:
    """One setting in one variant; ``pairs`` are those that every point has."""

    name: str
    title: str
    variant: str
    default: str
    pairs: tuple[int, ...]
    points: tuple[Point, ...]


def panels(study: StudyConfig, results: Sequence[RunResult]) -> list[Panel]:
    """Every panel in every variant that all its arms run in, where its default and another point have common pairs."""
    found = (
        _panel(study, name, panel, variant, results)
        for variant in study.variants
        for name, panel in study.sensitivity.items()
        if all(variant in study.variants_of(study.arms[arm]) for arm in panel.points)
    )
    return [panel for panel in found if panel is not None]


def _panel(
    study: StudyConfig, name: str, panel: SensitivityConfig, variant: str, results: Sequence[RunResult]
) -> Panel | None:
    finals: dict[str, dict[int, float]] = {}
    for result in results:
        if result.cell.variant == variant and result.cell.arm in panel.points:
            finals.setdefault(result.cell.arm, {})[result.cell.pair] = result.final
    present = {arm: value for arm, value in panel.points.items() if len(finals.get(arm, {})) >= LEAST_PAIRS}
    common = sorted(set.intersection(*(set(finals[arm]) for arm in present))) if present else []
    if panel.default not in present or len(present) < 2 or len(common) < LEAST_PAIRS:
        return None
    kept = {arm: {pair: finals[arm][pair] for pair in common} for arm in present}
    points = [
        _point(study, arm, value, kept[arm], None if arm == panel.default else kept[panel.default])
        for arm, value in sorted(present.items(), key=lambda item: item[1])
    ]
    return Panel(name, panel.title, variant, panel.default, tuple(common), tuple(points))


def _point(
    study: StudyConfig, arm: str, value: float, finals: dict[int, float], default: dict[int, float] | None
) -> Point:
    level, seed = study.confidence, study.task.seed
    against = None if default is None else paired_difference(finals, default, confidence=level, seed=seed).difference
    return Point(arm, value, mean_interval(list(finals.values()), confidence=level), against)
