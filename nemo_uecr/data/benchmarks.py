"""The benchmarks by name: where they come from and how their rows read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.hub import is_repository, locate
from nemo_uecr.data.problems import Problem
from nemo_uecr.data.rows import ANSWER_KEYS, QUESTION_KEYS, Row, data_files, read_rows
from nemo_uecr.data.texts import empty_box, text_of, usable
from nemo_uecr.errors import DataError

#: A solution that ends in this marker has the answer after it.
ANSWER_MARKER = "####"
ID_KEYS = ("unique_id", "id", "problem_idx", "idx")


@dataclass(frozen=True)
class Benchmark:
    """A public benchmark: its name on the hub, its title in tables, and how many problems it has."""

    name: str
    repository: str
    title: str
    problems: int


#: The five of the paper, in the order of its tables.
PAPER = ("aime24", "aime25", "amc23", "hmmt_feb25", "hmmt_nov25")
BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("aime24", "HuggingFaceH4/aime_2024", "AIME24", 30),
        Benchmark("aime25", "MathArena/aime_2025", "AIME25", 30),
        Benchmark("amc23", "math-ai/amc23", "AMC23", 40),
        Benchmark("hmmt_feb25", "MathArena/hmmt_feb_2025", "HMMT25 Feb", 30),
        Benchmark("hmmt_nov25", "MathArena/hmmt_nov_2025", "HMMT25 Nov", 30),
    )
}


@dataclass(frozen=True)
class LoadedBenchmark:
    """A benchmark's problems, and where they were read from."""

    name: str
    problems: tuple[Problem, ...]
    files: tuple[Path, ...]
    revision: str | None


def load_benchmark(given: str) -> LoadedBenchmark:
    """Read a benchmark given as a known name, ``NAME=FILE`` or a file.

    A file's fields are found by name: question or problem, answer or final_answer, any id.

    Raises:
        DataError: If it cannot be read, a row has no question or answer, or a known benchmark has another size.
    """
    name, place = _name_and_place(given)
    known = BENCHMARKS.get(name)
    source = place or (known.repository if known and not Path(name).exists() else name)
    located = locate(source, revision=None)
    if not place and source == name:
        name = Path(name).stem
    files = data_files(located.path)
    problems = tuple(_problems(files))
    if located.revision is not None and known is not None and len(problems) != known.problems:
        raise DataError(f"{source}: got {len(problems)} problems; expected the {known.problems} of {known.title}")
    return LoadedBenchmark(name, problems, tuple(files), located.revision)


def load_benchmarks(given: list[str]) -> dict[str, LoadedBenchmark]:
    """Read several; two of one name are refused."""
    loaded: dict[str, LoadedBenchmark] = {}
    for text in given:
        benchmark = load_benchmark(text)
        if benchmark.name in loaded:
            raise DataError(f"two benchmarks are called {benchmark.name!r}; name them apart: NAME=FILE")
        loaded[benchmark.name] = benchmark
    return loaded


def check_benchmarks(given: list[str]) -> None:
    """Refuse benchmarks that cannot be read, without asking the hub: files are read, names of the hub are taken.

    Raises:
        DataError: one is neither known, nor a file, nor of the hub's form; a file cannot be read.
    """
    for text in given:
        name, place = _name_and_place(text)
        source = place or name
        known = name in BENCHMARKS and not place
        if not known and not Path(source).exists() and not is_repository(source):
            raise DataError(f"{source}: no such file, and no known benchmark; expected one of {', '.join(BENCHMARKS)}")
    load_benchmarks([text for text in given if Path(_name_and_place(text)[1] or text).exists()])


def check_benchmark_files(files: Mapping[str, str]) -> None:
    """Refuse a configuration's benchmarks that are not there.

    Raises:
        DataError: naming the key and the file.
    """
    for name, path in files.items():
        if not Path(path).is_file():
            raise DataError(f"evaluation.benchmarks.{name}: no file {path}; give the path of a JSONL file of problems")


def _name_and_place(given: str) -> tuple[str, str]:
    if "=" not in given or "/" in given.split("=")[0]:
        return given, ""
    name, _, place = given.partition("=")
    if not name.strip() or not place.strip():
        raise DataError(f"benchmark {given!r}: expected NAME=FILE, neither of them empty")
    return name, place


def _problems(files: list[Path]) -> list[Problem]:
    problems: list[Problem] = []
    seen: set[str] = set()
    for file in files:
        for number, row in enumerate(read_rows(file, columns=None), start=1):
            problem = _problem(row, f"{file}: row {number}", str(len(problems) + 1))
            if problem.id.strip() in seen:
                raise DataError(f"{file}: row {number}: duplicate id {problem.id!r}; ids must be unique")
            seen.add(problem.id.strip())
            problems.append(problem)
    if not problems:
        raise DataError(f"{files[0]}: no problems; expected at least one row")
    return problems


def _problem(row: Row, where: str, number: str) -> Problem:
    question = next((text for key in QUESTION_KEYS if (text := text_of(row.get(key)))), None)
    answer = next((text for key in ANSWER_KEYS if (text := text_of(row.get(key)))), None)
    if question is None or answer is None:
        raise DataError(f"{where}: no question or no answer; the row has {', '.join(row) or 'no fields'}")
    answer = answer.rpartition(ANSWER_MARKER)[2].strip()
    if not usable(answer) or empty_box(answer):
        raise DataError(f"{where}: the answer is {answer!r}; expected one that can be seen")
    identity = next((str(row[key]) for key in ID_KEYS if row.get(key) is not None), number)
    return Problem(identity, question, answer)
