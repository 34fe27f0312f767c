"""The samples of an evaluation on disk: appended chunk by chunk, complete lines only, each sample once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_uecr.data.benchmarks import BENCHMARKS
from nemo_uecr.data.json_text import decoded
from nemo_uecr.errors import DataError

Key = tuple[str, str, int]


@dataclass(frozen=True)
class Sample:
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
    token_ids: list[int] | None = None  # what was sampled; files written before it was kept have none

    @property
    def key(self) -> Key:
        """Which sample it is."""
        return self.benchmark, self.problem, self.sample

    @property
    def reward(self) -> float:
        """1 for a correct answer, 0 otherwise."""
        return float(self.verdict == "correct")


def read_samples(path: Path) -> list[Sample]:
    """Every sample of a file.

    Raises:
        DataError: naming the line that is no sample, or a sample that stands twice.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected the samples of an evaluation")
    samples: list[Sample] = []
    seen: set[Key] = set()
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            sample = Sample(**decoded(line))
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}:{number}: not a sample ({error}); the file is truncated or corrupt") from error
        if sample.key in seen:
            raise DataError(f"{path}:{number}: sample {sample.key} stands twice; expected each once")
        seen.add(sample.key)
        samples.append(sample)
    return samples


def drop_torn_line(path: Path) -> None:
    """Cut off what follows the last line break: a kill in the middle of a write leaves half a line."""
    if not path.is_file():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def append_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Add samples, all of them or none, and push them to disk.

    Raises:
        OSError: naming the file, which ends as it did before.
    """
    content = "".join(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples)
    rest = memoryview(content.encode())
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(end)
            error.filename = str(path)  # a failed write does not know it
            raise


def rewards_by_benchmark(samples: Iterable[Sample]) -> dict[str, dict[str, list[float]]]:
    """Rewards by benchmark and problem: the paper's benchmarks first, in its order, whatever order they came in."""
    ranks = {name: rank for rank, name in enumerate(BENCHMARKS)}
    rewards: dict[str, dict[str, list[float]]] = {}
    for sample in sorted(samples, key=lambda each: (ranks.get(each.benchmark, len(ranks)), each.key)):
        rewards.setdefault(sample.benchmark, {}).setdefault(sample.problem, []).append(sample.reward)
    return rewards
