"""The samples of an evaluation on disk: appended chunk by chunk, complete lines only, each sample once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_uecr.data.atomic import append_whole
from nemo_uecr.data.benchmarks import BENCHMARKS
from nemo_uecr.data.json_text import decoded
from nemo_uecr.errors import DataError
from nemo_uecr.verifier.verdict import Verdict

SAMPLES = "samples.jsonl"
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
            sample = _sample(decoded(line))
        except ValueError as error:
            raise DataError(f"{path}:{number}: not a sample ({error}); the file is truncated or corrupt") from error
        if sample.key in seen:
            raise DataError(f"{path}:{number}: sample {sample.key} stands twice; expected each once")
        seen.add(sample.key)
        samples.append(sample)
    return samples


def _sample(found: object) -> Sample:
    """A line of the file as a sample.

    Raises:
        ValueError: naming the key that is missing, unknown, or of another kind.
    """
    if not isinstance(found, dict):
        raise ValueError(f"got {type(found).__name__}, expected one JSON object")
    for key, (expected, fits) in _KEYS.items():
        if key not in found and key != "token_ids":
            raise ValueError(f"no {key!r}")
        if key in found and not fits(found[key]):
            raise ValueError(f"{key} is {found[key]!r:.60}, expected {expected}")
    unknown = sorted(found.keys() - _KEYS.keys())
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r:.60}")
    return Sample(**found)


def _whole(value: object) -> bool:
    """A count or an id; one of hundreds of digits is none, and no mean can be taken of it."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _text(value: object) -> bool:
    return isinstance(value, str) and _encodes(value)


def _name(value: object) -> bool:
    return isinstance(value, str) and value.strip() != "" and _encodes(value)


def _encodes(text: str) -> bool:
    """Whether it can be written again; half of a surrogate pair cannot."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


_VERDICTS = tuple(verdict.value for verdict in Verdict)
#: Every key of a line: what is expected there in words, and whether a value is that.
_KEYS: dict[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("benchmark", "problem"), ("a text that is not empty", _name)),
    "sample": ("a whole number from 0 to 2**63 - 1", _whole),
    **dict.fromkeys(("question", "answer", "response"), ("a text", _text)),
    "extracted": ("a text or null", lambda value: value is None or _text(value)),
    "verdict": (f"one of {', '.join(_VERDICTS)}", lambda value: isinstance(value, str) and value in _VERDICTS),
    "tokens": ("a whole number from 0 to 2**63 - 1", _whole),
    "truncated": ("true or false", lambda value: isinstance(value, bool)),
    "token_ids": (
        "a list of whole numbers, or null",
        lambda value: value is None or (isinstance(value, list) and all(map(_whole, value))),
    ),
}


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
    append_whole(path, sample_lines(samples))


def sample_lines(samples: Iterable[Sample]) -> bytes:
    """The samples as a file holds them, one a line."""
    return "".join(json.dumps(asdict(sample), ensure_ascii=False) + "\n" for sample in samples).encode()


def rewards_by_benchmark(samples: Iterable[Sample]) -> dict[str, dict[str, list[float]]]:
    """Rewards by benchmark and problem: the paper's benchmarks first, in its order, whatever order they came in."""
    ranks = {name: rank for rank, name in enumerate(BENCHMARKS)}
    rewards: dict[str, dict[str, list[float]]] = {}
    for sample in sorted(samples, key=lambda each: (ranks.get(each.benchmark, len(ranks)), each.key)):
        rewards.setdefault(sample.benchmark, {}).setdefault(sample.problem, []).append(sample.reward)
    return rewards
