"""Comparisons of evaluations on the same problems: two models in pairs, and the choice of one checkpoint of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.samples import SAMPLES, Sample, check_complete, read_samples, rewards_by_benchmark
from nemo_uecr.evaluation.settings import SETTINGS, differences
from nemo_uecr.files import read_object
from nemo_uecr.stats import RESAMPLES, Difference, holm, paired_comparison

Result = Mapping[str, Any]
#: How a checkpoint is chosen: the highest equal-weight average of avg@k (the earlier of equal ones); the first that is
#: not below the best one's 95 % interval, for fewer steps without a measurable loss; the last, whatever it scores.
RULES = ("best", "earliest-near-best", "last")


def compare(first: Path, second: Path, *, seed: int) -> dict[str, Difference]:
    """Compare two evaluation folders, or two sample files of training runs.

    Returns:
        The difference on each benchmark and, under "average", on their equal-weight average.

    Raises:
        DataError: Problems, samples or decoding differ, or an evaluation is not finished.
    """
    records = [read_object(path / SETTINGS) if path.is_dir() else None for path in (first, second)]
    if records[0] is not None and records[1] is not None:
        for key, ours, theirs in differences(records[0], records[1]):
            if not key.startswith("model."):
                raise DataError(
                    f"{first} and {second} were evaluated with {key}={ours!r} and {theirs!r}; expected the same"
                )
    samples = [read_samples(path / SAMPLES if path.is_dir() else path) for path in (first, second)]
    rewards = [rewards_by_benchmark(each) for each in samples]
    for path, record, found in zip((first, second), records, rewards, strict=True):
        if record is not None:
            check_complete(path, record, found)
    _check_same_problems(first, second, samples[0], samples[1])
    pairs = {
        name: (_means(rows.values()), _means(rewards[1][name][problem] for problem in rows))
        for name, rows in rewards[0].items()
    }
    each = {name: paired_comparison({name: pair}, seed=seed) for name, pair in pairs.items()}
    return each | {"average": paired_comparison(pairs, seed=seed)}


def lines_of(differences: Mapping[str, Difference]) -> list[str]:
    """The differences for a terminal, in percent, one benchmark a line; Holm corrects the benchmarks' p-values."""
    sets = [name for name in differences if name != "average"]
    corrected = dict(zip(sets, holm([differences[name].p_value for name in sets]), strict=True))
    lines = [
        f"95% interval and p by {RESAMPLES:,} sign changes of the problems' differences",
        f"  {'':<12} {'first':>6} {'second':>6}   diff                       p   Holm  better worse",
    ]
    for name, each in differences.items():
        diff, low, high = (f"{round(100 * value, 9):+z6.2f}" for value in (each.difference, each.low, each.high))
        if name == "average" and len(sets) == 1:
            continue
        lines.append(
            f"  {name:<12} {100 * each.first:6.2f} {100 * each.second:6.2f} {diff} [{low}, {high}] {each.p_value:7.4f} "
            f"{f'{corrected[name]:6.4f}' if name in corrected else '':6}  {each.better:>6} {each.worse:>5} of "
            f"{each.problems}"
        )
    return lines


def _means(rows: Any) -> list[float]:
    return [sum(row) / len(row) for row in rows]


def _check_same_problems(first: Path, second: Path, ours: Sequence[Sample], theirs: Sequence[Sample]) -> None:
    """Refuse other problems, other questions or answers under equal ids, and other numbers of samples."""
    counts = [
        Counter((each.benchmark, each.problem, each.question, each.answer) for each in samples)
        for samples in (ours, theirs)
    ]
    if counts[0] != counts[1] or not ours:
        odd = sorted(place for place in counts[0].keys() | counts[1].keys() if counts[0][place] != counts[1][place])
        at = f" (first: problem {odd[0][1]!r} of {odd[0][0]})" if odd else ""
        raise DataError(
            f"{first} and {second} differ in their problems{at}; a paired comparison needs the same questions, answers "
            "and numbers of samples"
        )


def select(results: Sequence[Result], rule: str, benchmarks: Sequence[str]) -> int:
    """Index of the checkpoint that a rule chooses.

    Args:
        results: in the order of training.
        rule: one of `RULES`.
        benchmarks: what the rule looks at; empty is all.
    """
    names = list(benchmarks) or list(results[0]["sets"])
    check_rule(rule, names, list(results[0]["sets"]))
    if rule == "last":
        return len(results) - 1
    scores = [sum(result["sets"][name]["avg"] for name in names) / len(names) for result in results]
    best = scores.index(max(scores))
    if rule == "best":
        return best
    sets = [results[best]["sets"][name] for name in names]
    low = scores[best] - sum((each["avg"] - each["low"]) ** 2 for each in sets) ** 0.5 / len(sets)
    return next(index for index, score in enumerate(scores) if score >= low)


def check_rule(rule: str, benchmarks: Sequence[str], evaluated: Sequence[str]) -> None:
    """Refuse an unknown rule or benchmark, before the first checkpoint is evaluated.

    Raises:
        DataError: naming it.
    """
    if rule not in RULES:
        raise DataError(f"rule {rule!r}; expected one of {', '.join(RULES)}")
    for name in benchmarks:
        if name not in evaluated:
            raise DataError(f"--select-on {name!r}; the evaluations have {', '.join(evaluated)}")
