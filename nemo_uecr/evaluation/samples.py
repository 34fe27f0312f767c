"""The samples of an evaluation on disk, and their result: avg@k with intervals, pass@k, verdicts."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.data.problems import checked_lines
from nemo_uecr.data.sources import BENCHMARKS
from nemo_uecr.errors import DataError
from nemo_uecr.files import replace_file
from nemo_uecr.stats import pass_at_k, score_interval

SAMPLES = "samples.jsonl"
RESULT = "result.json"
Key = tuple[str, str, int]
#: Rewards of k samples, by benchmark and problem.
Rewards = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class EvaluationSample:
    """One response to one problem, with its verdict."""

    benchmark: str
    problem: str
    sample: int
    question: str
    answer: str
    response: str
    extracted: str | None
    verdict: str
    tokens: int
    truncated: bool
    token_ids: list[int] | None = None  # as sampled
    context: tuple[dict[str, str], ...] = ()  # the turns before the question
    asked: str = ""  # a digest of all that is asked, equal for problems that repeat it

    @property
    def key(self) -> Key:
        return self.benchmark, self.problem, self.sample

    @property
    def reward(self) -> float:
        return float(self.verdict == "correct")


def read_samples(path: Path) -> list[EvaluationSample]:
    """All samples of a file; DataError names the first malformed line."""
    return [sample for _, sample in checked_lines(path, EvaluationSample)]


def drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a kill during a write leaves."""
    if path.is_file():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def sample_lines(samples: Iterable[EvaluationSample]) -> bytes:
    """The samples as JSON lines."""
    return "".join(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples).encode()


def write_samples(folder: Path, step: int, samples: Sequence[EvaluationSample], *, started: float) -> dict[str, Any]:
    """Write all samples of an evaluation within a training run, or none; returns its line of ``evaluation.jsonl``.

    ``started`` is when it began, on `time.perf_counter`.
    """
    replace_file(folder / "evaluations" / f"step-{step:06d}.jsonl", sample_lines(samples))
    return {"step": step} | summarise(samples) | {"seconds": round(time.perf_counter() - started, 3)}


def rewards_by_benchmark(samples: Iterable[EvaluationSample]) -> Rewards:
    """Rewards by benchmark and problem, the paper's benchmarks first, in its order."""
    ranks = {name: rank for rank, name in enumerate(BENCHMARKS)}
    rewards: Rewards = {}
    for sample in sorted(samples, key=lambda each: (ranks.get(each.benchmark, len(ranks)), each.key)):
        rewards.setdefault(sample.benchmark, {}).setdefault(sample.problem, []).append(sample.reward)
    return rewards


def questions_by_benchmark(samples: Sequence[EvaluationSample]) -> dict[str, list[str]]:
    """What each problem asks, in the order of `rewards_by_benchmark`: problems that repeat it are one observation."""
    asked = {(each.benchmark, each.problem): each.asked or f"{each.context}{each.question}" for each in samples}
    rewards = rewards_by_benchmark(samples)
    return {name: [asked[name, problem] for problem in rows] for name, rows in rewards.items()}


def check_complete(folder: Path, record: Mapping[str, Any], rewards: Rewards) -> None:
    """Refuse an unfinished evaluation: its figures would be those of the first problems."""
    k, planned = record["samples"], {name: entry["problems"] for name, entry in record["benchmarks"].items()}
    counts = {name: [len(row) for row in rows.values()] for name, rows in rewards.items()}
    if counts != {name: [k] * problems for name, problems in planned.items()}:
        raise DataError(
            f"{folder}: the evaluation is not finished, it has {sum(map(sum, counts.values()))} of "
            f"{k * sum(planned.values())} samples; run its command again to continue"
        )


def summarise(samples: Sequence[EvaluationSample]) -> dict[str, Any]:
    """avg@k and pass@k per benchmark, and their equal-weight average; every problem has k samples."""
    rewards = {name: list(rows.values()) for name, rows in rewards_by_benchmark(samples).items()}
    asked, k = questions_by_benchmark(samples), len(next(iter(rewards.values()))[0])
    sets = {
        name: score_interval({name: rows}, asked)._asdict() | {"problems": len(rows), "pass": pass_at_k(rows, k)}
        for name, rows in rewards.items()
    }
    return {"samples": k, "sets": sets, "average": score_interval(rewards, asked)._asdict()}


def write_result(folder: Path, record: Mapping[str, Any], samples: Sequence[EvaluationSample]) -> dict[str, Any]:
    """Write and return ``result.json`` from complete samples; ``record`` is the content of ``settings.json``."""
    rewards, k = rewards_by_benchmark(samples), record["samples"]
    check_complete(folder, record, rewards)
    result = {"label": record["label"], "model": record["model"]["name"]} | summarise(samples)
    for name, entry in result["sets"].items():
        rows, own = list(rewards[name].values()), [sample for sample in samples if sample.benchmark == name]
        counts = sorted({2**power for power in range(k.bit_length())} | {k})
        entry["pass"] = {str(count): pass_at_k(rows, count) for count in counts}
        entry["truncated"] = sum(sample.truncated for sample in own) / len(own)
        entry["tokens"] = sum(sample.tokens for sample in own) / len(own)
        entry["verdicts"] = dict(sorted(Counter(sample.verdict for sample in own).items()))
    replace_file(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
    return result


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """The result as a table for the terminal."""
    k = result["samples"]
    lines = [f"{result['label']}: avg@{k} in percent, 95% interval over problems"]
    for name, row in [*result["sets"].items(), ("average", result["average"])]:
        avg, low, high = (f"{100 * row[key]:6.2f}" for key in ("avg", "low", "high"))
        lines.append(f"  {name:<12} {avg}  [{low}, {high}]")
        if "pass" in row:
            lines[-1] += f"  pass@{k} {100 * row['pass'][str(k)]:6.2f}  truncated {100 * row['truncated']:5.1f}"
    return lines
