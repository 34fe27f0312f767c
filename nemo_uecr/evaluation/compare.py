"""Paired comparison of two evaluations on the same problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.runner import recorded_settings, setting_differences
from nemo_uecr.evaluation.samples import (
    RESPONSES,
    SUMMARISED,
    evaluations_of,
    finished,
    questions_by_benchmark,
    rewards_by_benchmark,
)
from nemo_uecr.responses.table import read_responses
from nemo_uecr.stats import DIFFERENT, RESAMPLES, Difference, holm, paired_comparison


def differences_of(first: Path, second: Path, *, seed: int) -> dict[str, Difference]:
    """The difference on each benchmark and, under "average", on their equal-weight average.

    Args:
        first: folder of a finished evaluation, run folder (its last evaluation), or a table of an evaluation.
        second: likewise; the difference is second - first.
        seed: of the sign changes.

    Raises:
        DataError: problems, numbers of samples or settings differ.
    """
    places = (first, second)
    files, records = zip(*map(_samples, places), strict=True)
    known = (records[0].keys() & records[1].keys()) - {"model"}
    for key, ours, theirs in setting_differences(*({key: record[key] for key in known} for record in records)):
        raise DataError(f"{first} and {second} were evaluated with {key}={ours!r} and {theirs!r}; expected the same")
    tables = [read_responses(file) for file in files]
    rows = [{name: table.column(name) for name in SUMMARISED} for table in tables]
    rewards = [rewards_by_benchmark(each) for each in rows]
    if rewards[0].keys() != rewards[1].keys():
        ours, theirs = (", ".join(sorted(each)) for each in rewards)
        raise DataError(f"{first} has the benchmarks {ours}, {second} {theirs}; expected the same")
    texts = ("benchmark", "problem", "question", "answer")
    problems = [Counter(zip(*(table.column(name) for name in texts), strict=True)) for table in tables]
    if problems[0] != problems[1]:
        (name, problem, *_), _ = min(problems[0].items() ^ problems[1].items())
        raise DataError(
            f"{first} and {second} differ in problem {problem!r} of {name}; a paired comparison needs the same "
            "questions, answers and numbers of samples"
        )
    pairs = {
        name: ([fmean(row) for row in own.values()], [fmean(rewards[1][name][problem]) for problem in own])
        for name, own in rewards[0].items()
    }
    asked = questions_by_benchmark(rows[0])
    each = {name: paired_comparison({name: pair}, asked, seed=seed) for name, pair in pairs.items()}
    return each | {"average": paired_comparison(pairs, asked, seed=seed)}


def _samples(place: Path) -> tuple[Path, dict[str, Any]]:
    """The table of samples, and their known settings."""
    if not place.is_dir():
        folder = place.absolute().parent
        return place, recorded_settings(folder) or recorded_settings(folder.parent)
    file = max(evaluations_of(place), default=None) or finished(place)
    if not file.is_file():
        inner = sorted({str(path.parent) for name in (RESPONSES, "evaluations") for path in place.glob(f"*/{name}")})
        expected = f"one of {', '.join(inner)}" if inner else "a folder that nemo-uecr evaluate wrote, or a run folder"
        raise DataError(f"{place} holds no samples of an evaluation; expected {expected}")
    return file, recorded_settings(place)


def lines_of(differences: Mapping[str, Difference]) -> list[str]:
    """The differences in percent, one line per benchmark, with Holm's correction of the p-values."""
    sets = [name for name in differences if name != "average"]
    corrected = dict(zip(sets, holm([differences[name].p_value for name in sets]), strict=True))
    lines = [
        f"95% interval and p by {RESAMPLES:,} sign changes of the problems' differences",
        f"  {'':<12} {'first':>6} {'second':>6}   diff                       p   Holm  better worse",
    ]
    for name in sets if len(sets) == 1 else differences:
        each = differences[name]
        diff, low, high = (f"{round(100 * value, 9):+z6.2f}" for value in (each.difference, each.low, each.high))
        p = f"{each.p_value:7.4f} " + (f"{corrected[name]:6.4f}" if name in corrected else " " * 6)
        means = f"{100 * each.first:6.2f} {100 * each.second:6.2f}"
        counts = f"{each.better:>6} {each.worse:>5} of {each.problems}"
        lines.append(f"  {name:<12} {means} {diff} [{low}, {high}] {p}  {counts}{' *' if each.few else ''}")
    if any(line.endswith("*") for line in lines):
        lines.append(f"  * fewer than {DIFFERENT} problems differ: two made-up ones widen the interval")
    return lines
