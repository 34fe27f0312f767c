"""Benchmarks and data sets by name: a local path is used as it is, anything else is fetched from the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.models import has_hub_form
from nemo_uecr.data.problems import (
    ANSWER_KEYS,
    QUESTION_KEYS,
    Problem,
    Row,
    data_files,
    empty_box,
    read_rows,
    text_of,
    usable,
)
from nemo_uecr.errors import DataError, DependencyError

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


# Data sets.


@dataclass(frozen=True)
class Located:
    """Where a data set lies on disk.

    Attributes:
        name: what the user called it.
        path: file or folder.
        revision: commit of the hub's repository; None for local files, whose hashes say what they are.
    """

    name: str
    path: Path
    revision: str | None


def locate(name: str, *, revision: str | None) -> Located:
    """A local path, or the hub's data set of that name, downloaded.

    Args:
        name: path, or ``owner/name``.
        revision: branch, tag or commit on the hub; None is its main branch.

    Raises:
        DataError: If it is neither, or empty, or the hub does not answer.
    """
    if not name.strip():  # an empty path is the current folder
        raise DataError(f"the name of a data set is {name!r}; expected a file, a folder or a name on the hub")
    path = Path(name).expanduser()
    if path.exists() or not is_repository(name):
        return Located(path.name if path.exists() else name, path, None)
    return _download(name, revision)


def is_repository(name: str) -> bool:
    """Whether a name that is no path here is taken for one of the hub's."""
    return has_hub_form(name) and Path(name).suffix not in (".jsonl", ".parquet")


def _download(name: str, revision: str | None) -> Located:
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as missing:
        raise DependencyError(f"fetching {name} needs huggingface_hub; pip install 'nemo-uecr[data]'") from missing
    try:
        # Returns the cached snapshot when the hub is offline and the revision is already on disk.
        folder = huggingface_hub.snapshot_download(
            name, repo_type="dataset", revision=revision, allow_patterns=["*.parquet", "*.jsonl"]
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise DataError(
            f"{name}: no such file here, and the hub did not give it ({' '.join(str(error).split())[:160]}); "
            "name a local .jsonl or .parquet file or check the network"
        ) from error
    return Located(name, Path(folder), Path(folder).name)
