"""Paired comparison of two evaluations on the same problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.plan import PLAN, differences, read_plan
from nemo_uecr.evaluation.samples import SAMPLES, Sample, read_samples, rewards_by_benchmark
from nemo_uecr.stats import Difference, paired_bootstrap


def compare(first: Path, second: Path, *, seed: int) -> dict[str, Difference]:
    """Compare two evaluation folders, or two sample files of training runs.

    Returns:
        The difference on each benchmark and, under "average", on their equal-weight average.

    Raises:
        DataError: If problems, samples or decoding differ, or an evaluation is not finished.
    """
    plans = _checked_plans(first, second)
    samples = [read_samples(_samples_of(path)) for path in (first, second)]
    rewards = [rewards_by_benchmark(each) for each in samples]
    for path, plan, found in zip((first, second), plans, rewards, strict=True):
        if plan is not None:
            _check_complete(path, plan, found)
    if {name: rows.keys() for name, rows in rewards[0].items()} != {n: rows.keys() for n, rows in rewards[1].items()}:
        raise DataError(f"{first} and {second} have other problems; a paired comparison needs the same")
    if not rewards[0]:
        raise DataError(f"{first} has no sample; there is nothing to compare")
    _check_pairs(first, second, samples[0], samples[1])
    pairs = {
        name: (_means(rows), _means({problem: rewards[1][name][problem] for problem in rows}))
        for name, rows in rewards[0].items()
    }
    each = {name: paired_bootstrap({name: pair}, seed=seed) for name, pair in pairs.items()}
    return each | {"average": paired_bootstrap(pairs, seed=seed)}


def _means(rows: Mapping[str, Sequence[float]]) -> list[float]:
    return [sum(row) / len(row) for row in rows.values()]


def _check_pairs(first: Path, second: Path, ours: Sequence[Sample], theirs: Sequence[Sample]) -> None:
    """Refuse other questions or answers under equal ids, and another number of samples."""
    texts = {(sample.benchmark, sample.problem): (sample.question, sample.answer) for sample in ours}
    for sample in theirs:
        place = (sample.benchmark, sample.problem)
        for what, known, found in zip(
            ("question", "answer"), texts[place], (sample.question, sample.answer), strict=True
        ):
            if known != found:
                raise DataError(
                    f"{first} and {second} have another {what} for problem {sample.problem!r} of {sample.benchmark}: "
                    f"{known!r:.60} and {found!r:.60}; a paired comparison needs the same"
                )
    counts = [Counter((sample.benchmark, sample.problem) for sample in each) for each in (ours, theirs)]
    for place, number in counts[0].items():
        if number != counts[1][place]:
            raise DataError(
                f"{first} and {second} have {number} and {counts[1][place]} samples of problem {place[1]!r} of "
                f"{place[0]}; a paired comparison needs the same number"
            )


def _samples_of(path: Path) -> Path:
    return path / SAMPLES if path.is_dir() else path


def _checked_plans(first: Path, second: Path) -> list[dict[str, Any] | None]:
    """The plans of evaluation folders, which must agree; None for a file of samples."""
    plans = [_plan_of(path) for path in (first, second)]
    if plans[0] is not None and plans[1] is not None:
        for key, ours, theirs in differences(plans[0], plans[1]):
            if not key.startswith("model."):
                raise DataError(
                    f"{first} and {second} were evaluated with {key}={ours!r} and {theirs!r}; expected the same"
                )
    return plans


def _plan_of(path: Path) -> dict[str, Any] | None:
    if not path.is_dir():
        return None
    if not (path / PLAN).is_file():
        raise DataError(f"{path}: no {PLAN}; expected an evaluation folder or a file of samples")
    return read_plan(path)


def _check_complete(path: Path, plan: Mapping[str, Any], rewards: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Refuse an evaluation that a kill left: its figures would be those of the problems that came first."""
    k = plan["samples"]
    wanted = {name: entry["problems"] for name, entry in plan["benchmarks"].items()}
    found = {name: [len(row) for row in rows.values()] for name, rows in rewards.items()}
    if found != {name: [k] * problems for name, problems in wanted.items()}:
        raise DataError(
            f"{path}: got {sum(map(sum, found.values()))} of {k * sum(wanted.values())} samples, {k} for each of the "
            "plan's problems; finish the evaluation with the command that began it"
        )
