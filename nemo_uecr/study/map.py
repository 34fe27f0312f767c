"""The map of a study: which arm leads in which table and variant, and where the evidence is inconclusive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

from nemo_uecr.stats import DECIMALS, Mean, holm, mean_interval
from nemo_uecr.study.results import RunResult, common_pairs, runs_by_arm
from nemo_uecr.study.schema import StudyConfig

#: Corrected p below which a cell is coloured, and a gain has a star.
SIGNIFICANT, PAIRS = 0.05, 5  # with fewer pairs the map shows no p


@dataclass(frozen=True)
class Gap:
    """A paired difference; `p` is of the paired t test, Holm-corrected over the cells of the map."""

    difference: Mean
    p: float

    @property
    def reportable_p(self) -> float:
        """P where there are enough pairs for a page to show it; NaN below."""
        return self.p if self.difference.pairs >= PAIRS else nan


@dataclass(frozen=True)
class MapCell:
    """One table in one variant, on the pairs that all its arms have; methods are arms without what follows a dot."""

    table: str
    column: str  # the table's title
    variant: str
    panel: str
    row: str
    scores: dict[str, Mean]  # after the last step by method, best first
    over_baseline: dict[str, Mean]  # method minus baseline
    level: tuple[str, ...]  # the best and those whose difference to it has an interval with 0
    lead: Gap  # the best minus the second
    gain: Gap  # the best of the others minus the baseline
    reference: Gap  # the table's reference minus the best of the others


def map_cells(study: StudyConfig, runs: Sequence[RunResult], baseline: str) -> list[MapCell]:
    """The cells of the map whose arms all have at least two common pairs."""
    found = list[MapCell]()
    for panel, rows in study.map.items():
        for row, variant in rows.items():
            by_arm = runs_by_arm(runs, variant)
            for name, table in study.tables.items():
                arms = {arm: by_arm.get(arm, {}) for arm in table.arms}
                if pairs := common_pairs(arms):
                    finals = {method(arm): [arms[arm][pair].final for pair in pairs] for arm in arms}
                    found.append(_cell(study, name, panel, row, variant, finals, baseline))
    for key in ("lead", "gain", "reference"):
        gaps: list[Gap] = [getattr(cell, key) for cell in found]
        for place, p in enumerate(holm([gap.p for gap in gaps])):
            corrected: dict[str, Any] = {key: replace(gaps[place], p=p)}
            found[place] = replace(found[place], **corrected)
    return found


def _cell(
    study: StudyConfig, name: str, panel: str, row: str, variant: str, finals: dict[str, list[float]], baseline: str
) -> MapCell:
    from scipy import stats

    table = study.tables[name]
    means = {arm: mean_interval(values, confidence=study.confidence) for arm, values in finals.items()}
    ranked = sorted(means, key=lambda arm: -means[arm].mean)
    best, second, reference = ranked[0], ranked[1], method(table.reference)

    def gap(one: str, other: str) -> Gap:
        differences = [round(a - b, DECIMALS) for a, b in zip(finals[one], finals[other], strict=True)]
        # Equal differences leave the test no spread.
        p = float(stats.ttest_1samp(differences, 0.0).pvalue) if len({*differences}) > 1 else 1.0
        return Gap(mean_interval(differences, confidence=study.confidence), p)

    return MapCell(
        table=name,
        column=table.title,
        variant=variant,
        panel=panel,
        row=row,
        scores={arm: means[arm] for arm in ranked},
        over_baseline={arm: gap(arm, baseline).difference for arm in ranked if arm != baseline},
        level=(best, *(arm for arm in ranked[1:] if _inconclusive(gap(best, arm)))),
        lead=gap(best, second),
        gain=gap(second if best == baseline else best, baseline),
        reference=gap(reference, second if best == reference else best),
    )


def _inconclusive(gap: Gap) -> bool:
    return gap.difference.low <= 0 or gap.difference.low == gap.difference.high


def method(arm: str) -> str:
    """Arm name without the ``.teacher`` suffix."""
    return arm.partition(".")[0]
