"""Benchmarks and data sets by name: a local path is used as it is, anything else is fetched from the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.models import has_hub_form, one_line
from nemo_uecr.data.problems import ANSWER_KEYS, QUESTION_KEYS, Problem, Row, data_files, read_rows, text_of
from nemo_uecr.errors import DataError

#: A solution that ends in this marker has the answer after it.
ANSWER_MARKER = "####"
ID_KEYS = ("unique_id", "id", "problem_idx", "idx")


@dataclass(frozen=True)
class Benchmark:
    """A public benchmark: its place on the hub, its title in tables, and how many problems it has."""

    repository: str
    title: str
    problems: int


#: The five of the paper, in the order of its tables.
BENCHMARKS = {
    "aime24": Benchmark("HuggingFaceH4/aime_2024", "AIME24", 30),
    "aime25": Benchmark("MathArena/aime_2025", "AIME25", 30),
    "amc23": Benchmark("math-ai/amc23", "AMC23", 40),
    "hmmt_feb25": Benchmark("MathArena/hmmt_feb_2025", "HMMT25 Feb", 30),
    "hmmt_nov25": Benchmark("MathArena/hmmt_nov_2025", "HMMT25 Nov", 30),
}


@dataclass(frozen=True)
class LoadedBenchmark:
    """A benchmark's problems, the files they were read from, and the commit on the hub; None for local files."""

    name: str
    problems: tuple[Problem, ...]
    files: tuple[Path, ...]
    revision: str | None


def load_benchmark(given: str) -> LoadedBenchmark:
    """Read a benchmark given as a known name, ``NAME=FILE`` or a file.

    A file's fields are found by name: question or problem, answer or final_answer, any id.
    """
    name, source = _name_and_source(given)
    path, revision = locate(source, revision=None)
    files = data_files(path)
    problems: dict[str, Problem] = {}
    for file in files:
        for number, row in enumerate(read_rows(file), start=1):
            problem = _problem(row, f"{file}: row {number}", str(len(problems) + 1))
            if problem.id in problems:
                raise DataError(f"{file}: row {number}: duplicate id {problem.id!r}; ids must be unique")
            problems[problem.id] = problem
    known = BENCHMARKS.get(name)
    if not problems or (known is not None and revision is not None and len(problems) != known.problems):
        expected = known.problems if known is not None and revision is not None else "at least one"
        raise DataError(f"{source}: got {len(problems)} problems; expected {expected}")
    return LoadedBenchmark(name, tuple(problems.values()), tuple(files), revision)


def load_benchmarks(given: list[str]) -> dict[str, LoadedBenchmark]:
    """Read several; two of one name are refused."""
    loaded = {benchmark.name: benchmark for benchmark in map(load_benchmark, given)}
    if len(loaded) < len(given):
        raise DataError(f"two benchmarks of {', '.join(given)} have the same name; tell them apart with NAME=FILE")
    return loaded


def check_benchmarks(given: list[str]) -> None:
    """Read the benchmarks that lie here; names on the hub are taken as they are."""
    load_benchmarks([text for text in given if not _on_hub(_name_and_source(text)[1])])


def check_benchmark_files(files: Mapping[str, str]) -> None:
    """Refuse a configuration's benchmarks that are not there."""
    for name, path in files.items():
        if not Path(path).is_file():
            where = Path(path).absolute()
            raise DataError(f"evaluation.benchmarks.{name}: no file {where}; give a JSONL file of problems")


def _name_and_source(given: str) -> tuple[str, str]:
    """What tables call a benchmark, and its path or its name on the hub."""
    name, equals, place = given.partition("=")
    if equals and "/" not in name:
        return name, place
    if given in BENCHMARKS and not Path(given).exists():
        return given, BENCHMARKS[given].repository
    return Path(given).stem, given


def _problem(row: Row, where: str, number: str) -> Problem:
    question = next((text for key in QUESTION_KEYS if (text := text_of(row.get(key)))), None)
    answer = next((text for key in ANSWER_KEYS if (text := text_of(row.get(key)))), "")
    answer = answer.rpartition(ANSWER_MARKER)[2].strip()
    if question is None or not answer:
        raise DataError(f"{where}: no question or no answer; the row has {', '.join(row) or 'no fields'}")
    identity = next((str(row[key]) for key in ID_KEYS if row.get(key) is not None), number)
    return Problem(identity, question, answer)


# Data sets.


def locate(name: str, *, revision: str | None) -> tuple[Path, str | None]:
    """A local path, or the hub's data set ``owner/name``, downloaded, with its commit.

    ``revision`` is a branch, tag or commit on the hub; None is its main branch.
    """
    if not _on_hub(name):
        return Path(name).expanduser(), None
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    try:
        # Returns the cached snapshot when the hub is offline and the revision is already on disk.
        folder = huggingface_hub.snapshot_download(
            name, repo_type="dataset", revision=revision, allow_patterns=["*.parquet", "*.jsonl"]
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise DataError(
            f"{name}: no such file here, and the hub did not provide it ({one_line(error)}); "
            "name a local .jsonl or .parquet file or check the network"
        ) from error
    return Path(folder), Path(folder).name


def _on_hub(source: str) -> bool:
    """Whether a name that is no path here is taken for one of the hub's."""
    here = Path(source).expanduser().exists()
    return not here and has_hub_form(source) and Path(source).suffix not in (".jsonl", ".parquet")
