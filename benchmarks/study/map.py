"""The map of a study: the reference method minus the others in every table and variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from benchmarks.study.pairs import Mean, mean_interval
from benchmarks.study.results import LEAST_PAIRS, RunResult, common_pairs, runs_by_arm
from benchmarks.study.schema import StudyConfig, TableConfig, method
from nemo_uecr.stats import DECIMALS, holm

#: The opponent that is the best of a cell's other methods; it is chosen on the same runs.
BEST = "the best other"
#: Corrected p below which a difference is marked.
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Gap:
    """A paired difference; `p` is of the paired t test, Holm-corrected over the cells of the map."""

    difference: Mean
    p: float


@dataclass(frozen=True)
class MapCell:
    """One table in one variant, on the pairs that all its arms have; methods are arms without what follows a dot."""

    column: str  # the table's title
    panel: str
    row: str
    scores: dict[str, Mean]  # after the last step by method, best first
    against: dict[str, Gap]  # the table's reference minus each other method, and minus `BEST`


@dataclass(frozen=True)
class RowMean:
    """An arm of a table over the panels of one row of the map: the mean of each pair over them, then over pairs."""

    table: str  # its title
    row: str
    panels: int  # that have runs
    arm: str
    final: Mean  # after the last step
    difference: Mean | None  # the table's reference minus the arm; None for the reference


class Finals(NamedTuple):
    """Averages after the last step of one table in one variant, by arm, on the pairs that all its arms have."""

    table: str  # its key in the study file
    panel: str
    row: str
    by_arm: dict[str, dict[int, float]]

    @property
    def by_method(self) -> dict[str, list[float]]:
        """The averages by method, in the order of the pairs."""
        return {method(arm): [*finals.values()] for arm, finals in self.by_arm.items()}


def finals_of(study: StudyConfig, runs: Sequence[RunResult], tables: Mapping[str, TableConfig]) -> Iterator[Finals]:
    """The cells of these tables on the map's rows whose arms all have at least two common pairs."""
    for panel, rows in study.map.items():
        for row, variant in rows.items():
            by_arm = runs_by_arm(runs, variant)
            for name, table in tables.items():
                arms = {arm: by_arm.get(arm, {}) for arm in table.arms}
                if pairs := common_pairs(arms):
                    finals = {arm: {pair: arms[arm][pair].final for pair in pairs} for arm in arms}
                    yield Finals(name, panel, row, finals)


def over_cells(cells: Sequence[Finals]) -> dict[str, list[float]]:
    """Each arm's means over cells of one table, on the pairs that all of them have; empty with fewer than two."""
    pairs = sorted(set.intersection(*({*finals} for cell in cells for finals in cell.by_arm.values())))
    if len(pairs) < LEAST_PAIRS:
        return {}
    return {arm: [fmean(cell.by_arm[arm][pair] for cell in cells) for pair in pairs] for arm in cells[0].by_arm}


def row_means(study: StudyConfig, runs: Sequence[RunResult]) -> list[RowMean]:
    """Every table's rows that have runs on more than one panel of the map."""
    of_row: dict[tuple[str, str], list[Finals]] = {}
    for cell in finals_of(study, runs, study.tables):
        of_row.setdefault((cell.table, cell.row), []).append(cell)
    means = list[RowMean]()
    for (name, row), cells in of_row.items():
        table, finals = study.tables[name], over_cells(cells) if len(cells) > 1 else {}
        for arm, own in finals.items():
            gaps = [of_reference - value for of_reference, value in zip(finals[table.reference], own, strict=True)]
            final, gap = (mean_interval(values, confidence=study.confidence) for values in (own, gaps))
            means.append(RowMean(table.title, row, len(cells), arm, final, None if arm == table.reference else gap))
    return means


def map_cells(study: StudyConfig, runs: Sequence[RunResult]) -> list[MapCell]:
    """The cells of the map, p corrected over the cells of each opponent."""
    cells = list[MapCell]()
    for finals in finals_of(study, runs, study.mapped):
        table = study.tables[finals.table]
        scores, against = minus_others(finals.by_method, method(table.reference), study.confidence)
        cells.append(MapCell(table.title, finals.panel, finals.row, scores, against))
    for other in opponents(cells):
        compared = [cell.against for cell in cells if other in cell.against]
        corrected = holm([against[other].p for against in compared])
        for against, p in zip(compared, corrected, strict=True):
            against[other] = replace(against[other], p=p)
    return cells


def opponents(cells: Sequence[MapCell]) -> list[str]:
    """Names that the references are compared with, `BEST` last."""
    return sorted({name for cell in cells for name in cell.against}, key=lambda name: (name == BEST, name))


def minus_others(
    finals: dict[str, list[float]], reference: str, confidence: float
) -> tuple[dict[str, Mean], dict[str, Gap]]:
    """The methods' means, best first, and the reference minus each other and minus the best of them, p uncorrected."""
    from scipy import stats

    means = {name: mean_interval(values, confidence=confidence) for name, values in finals.items()}
    ranked = sorted(means, key=lambda name: -means[name].mean)
    others = [name for name in ranked if name != reference]
    against = dict[str, Gap]()
    for name, other in (*zip(others, others, strict=True), (BEST, others[0])):
        pairs = zip(finals[reference], finals[other], strict=True)
        differences = [round(own - of_other, DECIMALS) for own, of_other in pairs]
        # Equal differences leave the test no spread.
        p = float(stats.ttest_1samp(differences, 0.0).pvalue) if len({*differences}) > 1 else 1.0
        against[name] = Gap(mean_interval(differences, confidence=confidence), p)
    return {name: means[name] for name in ranked}, against
