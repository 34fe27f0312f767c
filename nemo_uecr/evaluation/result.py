"""The result of an evaluation: avg@k with intervals, pass@k, and what the verdicts were."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.data.atomic import replace_file
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.samples import Sample, rewards_by_benchmark
from nemo_uecr.stats import average_at_k, bootstrap_interval, pass_at_k

RESULT = "result.json"
RESAMPLES = 10_000


def write_result(folder: Path, plan: Mapping[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
    """Summarise complete samples into ``result.json``.

    Raises:
        DataError: If a problem has not k samples.
    """
    rewards = {name: list(rows.values()) for name, rows in rewards_by_benchmark(samples).items()}
    for name, expected in plan["benchmarks"].items():
        rows = rewards.get(name, [])
        if len(rows) != expected["problems"] or any(len(row) != plan["samples"] for row in rows):
            raise DataError(f"{folder}: {name} is incomplete; run the same command again to finish it")
    seed = plan["seed"]
    average = bootstrap_interval(rewards, resamples=RESAMPLES, seed=seed)
    result = {
        "label": plan["label"],
        "model": plan["model"]["name"],
        "samples": plan["samples"],
        "sets": {name: _summary(rows, name, samples, seed) for name, rows in rewards.items()},
        "average": vars(average),
    }
    replace_file(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
    return result


def _summary(rows: list[list[float]], name: str, samples: Sequence[Sample], seed: int) -> dict[str, Any]:
    interval = bootstrap_interval({name: rows}, resamples=RESAMPLES, seed=seed)
    own = [sample for sample in samples if sample.benchmark == name]
    size = len(rows[0])
    counts = sorted({1, size} | {2**power for power in range(1, size.bit_length()) if 2**power <= size})
    return {
        "avg": average_at_k(rows),
        "low": interval.low,
        "high": interval.high,
        "problems": len(rows),
        "pass": {str(count): pass_at_k(rows, count) for count in counts},
        "truncated": sum(sample.truncated for sample in own) / len(own),
        "tokens": sum(sample.tokens for sample in own) / len(own),
        "verdicts": dict(sorted(Counter(sample.verdict for sample in own).items())),
    }


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """The result as lines of a table for a terminal."""
    k = result["samples"]
    lines = [f"{result['label']}: avg@{k} in percent, 95% interval over problems"]
    for name, row in [*result["sets"].items(), ("average", result["average"])]:
        extra = ""
        if "pass" in row:
            extra = f"  pass@{k} {100 * row['pass'][str(k)]:6.2f}  truncated {100 * row['truncated']:5.1f}"
        lines.append(
            f"  {name:<12} {100 * row['avg']:6.2f}  [{100 * row['low']:6.2f}, {100 * row['high']:6.2f}]{extra}"
        )
    return lines
