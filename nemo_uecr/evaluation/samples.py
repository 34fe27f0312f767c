"""The responses of an evaluation on disk, and their result: avg@k with intervals, pass@k, verdicts.

A row of their table is a sample; `judge_generations` has its columns.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.data.sources import BENCHMARKS
from nemo_uecr.errors import DataError
from nemo_uecr.files import read_object, replace_file
from nemo_uecr.responses.table import Responses, part_paths, read_responses, write_responses
from nemo_uecr.stats import pass_at_k, score_interval

if TYPE_CHECKING:
    from torch import Tensor

RESPONSES, PARTS = "responses.parquet", "parts"
RESULT, SETTINGS = "result.json", "settings.json"
#: Columns that a summary is made of.
SUMMARISED = ("benchmark", "problem", "sample", "correct", "asked")
#: Columns of a table in memory: one value per sample.
Rows = Mapping[str, Sequence[Any]]
#: Rewards of k samples, by benchmark and problem.
Rewards = dict[str, dict[str, list[float]]]


def write_samples(
    folder: Path,
    step: int,
    rows: Rows,
    tokens: Mapping[str, Tensor],
    *,
    started: float,
    word: Callable[[int], str] | None = None,
) -> dict[str, Any]:
    """Write all samples of an evaluation within a training run, or none; returns its line of ``evaluation.jsonl``.

    ``started`` is when it began, on `time.perf_counter`; ``word`` is the text of a token, for dialogues.
    """
    path = folder / "evaluations" / f"step-{step:06d}.parquet"
    write_responses(path, rows, tokens, about={"step": step}, word=word)
    return {"step": step} | summarise(rows) | {"seconds": round(time.perf_counter() - started, 3)}


def evaluations_of(run: Path) -> list[Path]:
    """The tables of a run's evaluations, by step; of a version before 0.4.0 what the reader refuses."""
    return sorted(run.glob("evaluations/step-*.parquet")) or sorted(run.glob("evaluations/step-*.jsonl"))


def finished(folder: Path) -> Path:
    """The table of an evaluation folder; DataError where it is not finished: its figures would be of a part."""
    if (folder / RESPONSES).is_file() or not (folder / SETTINGS).is_file():
        return folder / RESPONSES
    if (folder / "samples.jsonl").is_file():  # of a version before 0.4.0, which the reader refuses
        return folder / "samples.jsonl"
    record = read_object(folder / SETTINGS)
    asked = record["samples"] * sum(entry["problems"] for entry in record["benchmarks"].values())
    found = sum(len(read_responses(path)) for path in part_paths(folder / PARTS))
    raise DataError(
        f"{folder}: the evaluation is not finished, it has {found} of {asked} samples; run its command again to "
        "continue"
    )


def rewards_by_benchmark(rows: Rows) -> Rewards:
    """Rewards by benchmark and problem, the paper's benchmarks first, in its order."""
    ranks, rewards = {name: rank for rank, name in enumerate(BENCHMARKS)}, Rewards()
    samples = zip(*(rows[name] for name in ("benchmark", "problem", "sample", "correct")), strict=True)
    for name, problem, _, correct in sorted(samples, key=lambda each: (ranks.get(each[0], len(ranks)), each[:3])):
        rewards.setdefault(name, {}).setdefault(problem, []).append(float(correct))
    return rewards


def questions_by_benchmark(rows: Rows) -> dict[str, list[str]]:
    """What each problem asks, in the order of `rewards_by_benchmark`: problems that repeat it are one observation."""
    asked = dict(zip(zip(rows["benchmark"], rows["problem"], strict=True), rows["asked"], strict=True))
    rewards = rewards_by_benchmark(rows)
    return {name: [asked[name, problem] for problem in own] for name, own in rewards.items()}


def summarise(rows: Rows) -> dict[str, Any]:
    """avg@k and pass@k per benchmark, and their equal-weight average; every problem has k samples."""
    rewards = {name: list(own.values()) for name, own in rewards_by_benchmark(rows).items()}
    asked, k = questions_by_benchmark(rows), len(next(iter(rewards.values()))[0])
    sets = {
        name: score_interval({name: own}, asked)._asdict() | {"problems": len(own), "pass": pass_at_k(own, k)}
        for name, own in rewards.items()
    }
    return {"samples": k, "sets": sets, "average": score_interval(rewards, asked)._asdict()}


def write_result(folder: Path, record: Mapping[str, Any], table: Responses) -> dict[str, Any]:
    """Write and return ``result.json`` from all samples; ``record`` is the content of ``settings.json``."""
    rows = {name: table.column(name) for name in (*SUMMARISED, "truncated", "verdict")}
    rewards, k = rewards_by_benchmark(rows), record["samples"]
    result = {"label": record["label"], "model": record["model"]["name"]} | summarise(rows)
    for name, entry in result["sets"].items():
        own = [row for row, benchmark in enumerate(rows["benchmark"]) if benchmark == name]
        counts = sorted({2**power for power in range(k.bit_length())} | {k})
        entry["pass"] = {str(count): pass_at_k(list(rewards[name].values()), count) for count in counts}
        entry["truncated"] = sum(rows["truncated"][row] for row in own) / len(own)
        entry["tokens"] = float(table.count_B[own].mean())
        entry["verdicts"] = dict(sorted(Counter(rows["verdict"][row] for row in own).items()))
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
