"""Measures the screening on rewritten problems, which it must find, and on other problems, which it must not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from nemo_uecr.data.benchmarks import LoadedBenchmark
from nemo_uecr.data.normalise import exact_key, normalised, tight_key
from nemo_uecr.data.planting import Rewrites
from nemo_uecr.data.screening import RULES, Finding, Screen, targets_of

SEED = 0


@dataclass(frozen=True)
class Recall:
    """How many rewritten problems were removed outright, and how many held for a person."""

    rewrite: str
    planted: int
    removed: int
    held: int


def planted_recall(benchmarks: Sequence[LoadedBenchmark], rewrites: Rewrites) -> list[Recall]:
    """What the screening finds among the rewritten problems of the benchmarks, one entry a rewriting."""
    screen = Screen(targets_of(benchmarks), RULES)
    measured = []
    for name, rewrite in rewrites.items():
        rng = random.Random(SEED)
        found = [_find(screen, rewrite(problem.question, rng)) for each in benchmarks for problem in each.problems]
        removed, held = _counts(found)
        measured.append(Recall(name, len(found), removed, held))
    return measured


def false_findings(
    benchmarks: Sequence[LoadedBenchmark], clean: Sequence[LoadedBenchmark]
) -> dict[str, tuple[int, int, int]]:
    """Removed, held and number of problems of other files, screened against the benchmarks."""
    screen = Screen(targets_of(benchmarks), RULES)
    return {
        each.name: (*_counts([_find(screen, problem.question) for problem in each.problems]), len(each.problems))
        for each in clean
    }


def _find(screen: Screen, text: str) -> Finding | None:
    plain = normalised(text)
    return screen.find(plain, exact_key(plain), tight_key(text))


def _counts(found: Sequence[Finding | None]) -> tuple[int, int]:
    certain = [finding.certain for finding in found if finding is not None]
    return sum(certain), len(certain) - sum(certain)
