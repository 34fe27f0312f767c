"""avg@k inside a training run: its record, and every sample of it, in the form that both back ends write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.atomic import replace_file
from nemo_uecr.evaluation.samples import Sample, rewards_by_benchmark, sample_lines
from nemo_uecr.stats import Interval, average_at_k, bootstrap_interval, pass_at_k


@dataclass(frozen=True)
class Evaluation:
    """The record of one evaluation (a line of ``evaluation.jsonl``)."""

    record: dict[str, object]
    average: Interval


def summarise(samples: Sequence[Sample], *, step: int, bootstrap: int, seed: int, seconds: float) -> Evaluation:
    """avg@k of every benchmark with its interval, and their equal-weight average.

    Args:
        samples: all of one evaluation; the same number for each problem.
        step: training step, 0 before training.
        bootstrap: resamples behind the intervals.
        seed: of the resampling.
        seconds: how long the evaluation took.
    """
    rewards = {name: list(rows.values()) for name, rows in rewards_by_benchmark(samples).items()}
    average = bootstrap_interval(rewards, resamples=bootstrap, seed=seed)
    sets = {name: _summary(rows, bootstrap, seed) for name, rows in rewards.items()}
    first = next(iter(rewards.values()))
    record = {"step": step, "samples": len(first[0]), "sets": sets, "average": vars(average), "seconds": seconds}
    return Evaluation(record, average)


def write_samples(folder: Path, step: int, samples: Sequence[Sample]) -> None:
    """Every sample of a step's evaluation, one a line, complete or not at all."""
    replace_file(folder / "evaluations" / f"step-{step:06d}.jsonl", sample_lines(samples))


def _summary(rewards: list[list[float]], bootstrap: int, seed: int) -> dict[str, float]:
    interval = bootstrap_interval({"set": rewards}, resamples=bootstrap, seed=seed)
    return {
        "avg": average_at_k(rewards),
        "low": interval.low,
        "high": interval.high,
        "problems": len(rewards),
        "pass": pass_at_k(rewards, len(rewards[0])),
    }
