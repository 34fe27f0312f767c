"""Benchmarks and data sets by name: a local path is used as it is, anything else is fetched from the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.problems import USUAL, Problem, read_problems
from nemo_uecr.data.sources import BENCHMARKS, find_source, on_hub
from nemo_uecr.errors import DataError


@dataclass(frozen=True)
class LoadedBenchmark:
    """A benchmark's problems, the files they were read from, and the commit on the hub; None for local files."""

    name: str
    problems: tuple[Problem, ...]
    files: tuple[Path, ...]
    revision: str | None


def load_benchmark(given: str, *, answered: bool = True) -> LoadedBenchmark:
    """Read a benchmark given as a known name, ``NAME=SOURCE`` or a source of problems, perhaps without answers."""
    name, place = _name_and_source(given)
    source = find_source(place, "test")
    problems = read_problems(source, USUAL, answered=answered)
    known = BENCHMARKS.get(name)
    if known is not None and source.revision is not None and len(problems) != known.problems:
        raise DataError(f"{place}: got {len(problems)} problems; expected {known.problems}")
    return LoadedBenchmark(name, tuple(problems), source.files, source.revision)


def load_benchmarks(given: list[str], *, answered: bool = True) -> dict[str, LoadedBenchmark]:
    """Read several; two of one name are refused."""
    loaded = {benchmark.name: benchmark for benchmark in (load_benchmark(each, answered=answered) for each in given)}
    if len(loaded) < len(given):
        raise DataError(f"two benchmarks of {', '.join(given)} have the same name; name them with NAME=FILE")
    return loaded


def check_benchmarks(given: list[str], *, answered: bool) -> None:
    """Read the benchmarks of this machine; names on the hub are not checked."""
    load_benchmarks([text for text in given if not on_hub(_name_and_source(text)[1])], answered=answered)


def _name_and_source(given: str) -> tuple[str, str]:
    """A benchmark's name in tables, and its path or its name on the hub."""
    name, equals, place = given.partition("=")
    return (name, place) if equals and "/" not in name else (Path(given.partition(":")[0]).stem, given)
