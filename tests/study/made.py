"""Made results: what a run would have measured."""

from __future__ import annotations

from pathlib import Path

from nemo_uecr.study.cells import Cell
from nemo_uecr.study.results import RunResult


def made_cell(arm: str, pair: int, *, variant: str) -> Cell:
    return Cell(arm, variant, pair, 1e-4, (), Path(f"runs/{variant}/{arm}/pair-{pair:03d}"))


def made_result(cell: Cell, final: float) -> RunResult:
    return RunResult(
        cell=cell,
        initial=0.0,
        final=final,
        curve=((0, 0.0), (2, final)),
        initial_sets={"level1": 0.0},
        sets={"level1": final},
        degenerate_start=0.5,
        degenerate=0.5,
        seconds={"update": 1.0},
        step_seconds=1.0,
        worst_identity=None,
        rewards=(10.0, 20.0),
        samples=12,
    )
