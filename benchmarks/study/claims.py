"""The claims of a study's file, and whether they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.study.map import BEST, SIGNIFICANT, Finals, finals_of, minus_others, over_cells
from benchmarks.study.pairs import Mean, mean_interval
from benchmarks.study.results import RunResult
from benchmarks.study.schema import ClaimConfig, StudyConfig, method
from nemo_uecr.stats import holm


@dataclass(frozen=True)
class TableVerdict:
    """A claim on one table: the reference minus the best of the others, and the cells in which it is below them."""

    claim: str
    column: str  # the table's title
    cells: int  # of the table that have runs
    best: str  # of the others, by its mean over the cells
    difference: Mean  # means over the cells, over pairs
    below: tuple[str, ...]  # cells below the best of the others in them, after correction over the claim's cells
    holds: bool


def verdicts(study: StudyConfig, runs: Sequence[RunResult]) -> list[TableVerdict]:
    """A line for each table of each claim that has runs."""
    claimed = {name: study.tables[name] for claim in study.claims.values() for name in claim.tables}
    cells = list(finals_of(study, runs, claimed))
    return [line for name, claim in study.claims.items() for line in _verdicts(study, name, claim, cells)]


def _verdicts(study: StudyConfig, name: str, claim: ClaimConfig, cells: Sequence[Finals]) -> list[TableVerdict]:
    reference = {table: method(study.tables[table].reference) for table in claim.tables}
    own = [cell for cell in cells if cell.table in claim.tables]
    gaps = []
    for cell in own:
        chosen = {each: cell.by_method[each] for each in (reference[cell.table], *claim.against)}
        gaps.append(minus_others(chosen, reference[cell.table], study.confidence)[1][BEST])
    corrected = dict(
        zip(((cell.table, cell.panel, cell.row) for cell in own), holm([gap.p for gap in gaps]), strict=True)
    )
    means = dict(zip(corrected, (gap.difference.mean for gap in gaps), strict=True))
    found = []
    for table in claim.tables:
        of_table = [cell for cell in own if cell.table == table]
        finals = {method(arm): values for arm, values in over_cells(of_table).items()} if of_table else {}
        if not finals:
            continue
        best = max(claim.against, key=lambda each: fmean(finals[each]))
        difference = mean_interval(
            [mine - other for mine, other in zip(finals[reference[table]], finals[best], strict=True)],
            confidence=study.confidence,
        )
        below = tuple(
            f"{row}, {panel}"
            for (cell, panel, row), p in corrected.items()
            if cell == table and p < SIGNIFICANT and means[cell, panel, row] < 0
        )
        holds = not below and difference.mean >= -claim.points
        title = study.tables[table].title
        found.append(TableVerdict(name, title, len(of_table), best, difference, below, holds))
    return found
