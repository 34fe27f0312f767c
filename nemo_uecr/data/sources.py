"""Where problems are: a file, a folder, a data set on the hub or a reader of the user's; which split; and its rows.

A source is written PLACE or PLACE:CHOICE, where CHOICE names a split, a configuration or both (`main/train`), or is a
pattern that takes several together (`*/train`).
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import logging
import lzma
import re
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from inspect import Parameter, isfunction, signature
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from nemo_uecr import door
from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.files import refuse_pointer
from nemo_uecr.generation.models import has_hub_form, one_line, only_here

log = logging.getLogger(__name__)

Row = dict[str, object]
Splits = dict[str, list[Path]]
#: The split that is taken where a source has several: training reads `train`, everything else `test`.
Role = Literal["train", "test"]
#: JSON that describes a data set, caches of `datasets`, and hidden files.
NO_DATA = re.compile(r"(?:dataset_\w+|state|config|manifest|metadata)\.json|cache-.*\.arrow|(?:\.|__).*")
#: Words in the names of files and folders that name a split, as the hub reads them.
WORDS = {
    word: split
    for split, words in {
        "train": "train training", "validation": "validation valid val dev", "test": "test testing eval evaluation",
    }.items() for word in words.split()
}  # fmt: skip
HELD_OUT = ("test", "validation")
SHARD = re.compile(r"(\w+)-\d{5}-of-\d{5}")
NOT_BLANK = re.compile(r"\S")
BOM = b"\xef\xbb\xbf"
ARROW_FILE = b"ARROW1"
#: How a text may be compressed.
PACKED = (".gz", ".bz2", ".xz", ".zst")
PARQUET_ROWS = 1024
#: What a user's reader is.
READER = "a function without arguments that yields rows, each a dict"
STARRED = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


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
class Source:
    """The files of one split, in order, of a path or hub name; the commit is None for local files.

    Of a reader `FILE.py:NAME` the file is the Python file, and its function yields the rows.
    """

    name: str
    files: tuple[Path, ...]
    revision: str | None
    reader: Callable[[], Iterable[Row]] | None = None

    def rows(self, columns: Collection[str] | None = None) -> Iterator[tuple[str, Row]]:
        """The place and content of each row, one at a time; of a table's file perhaps only some columns."""
        if self.reader is not None:
            yield from _own_rows(self, self.reader)
            return
        for file in self.files:
            yield from read_rows(file, columns=columns)


def find_source(given: str, role: Role, *, revision: str | None = None) -> Source:
    """The files of a source that training (``train``) or a benchmark (``test``) reads.

    Args:
        given: file, folder, ``owner/name`` on the hub or a name in `BENCHMARKS`, each with ``:CHOICE`` or without; or
            ``FILE.py:NAME``, a function without arguments that yields rows.
        role: the split that is taken where there are several and ``given`` chooses none.
        revision: branch, tag or commit on the hub; None is its main branch.

    Raises:
        DataError: nothing is there, or several splits are and none is chosen; or a reader cannot be loaded.
    """
    if door.is_own(given):
        return _own_source(given)
    name, choice = given.removeprefix("https://huggingface.co/datasets/"), ""
    if not Path(name).expanduser().exists() and ":" in name:
        name, _, choice = name.rpartition(":")
    if name in BENCHMARKS and not Path(name).exists():
        name = BENCHMARKS[name].repository
    hub = on_hub(name)
    path = _snapshot(name, revision) if hub else Path(name).expanduser()
    if path.is_file() and not choice:
        return Source(name, (path,), None)
    splits, default = _splits(path, name) if path.is_dir() else ({}, "")
    if not splits:
        if hub:
            raise DataError(f"{name}: no file of this data set on the hub ends in {', '.join(READERS)}; convert one")
        owner = f"; with a folder {path.parent} here it is no name on the hub" if has_hub_form(name) else ""
        raise DataError(
            f"no file {path.absolute()}, or none of problems in it{owner}; expected one that ends in "
            f"{', '.join(READERS)}, or a folder or a data set on the hub with such files"
        )
    files = _chosen(splits, choice, default, role, name)
    kind = next(kind for kind in READERS if any(file_kind(file) == kind for file in files))
    if left := [file.name for file in files if file_kind(file) != kind]:
        log.warning("%s: its %s files are read, and not %s", given, kind, ", ".join(left))
    files = [path / file for file in files if file_kind(file) == kind]
    return Source(name, tuple(files), path.name if hub else None)


def _own_source(given: str) -> Source:
    try:
        own = door.load(given, expected=READER, fits=_is_reader)
    except ConfigError as error:
        raise DataError(str(error)) from error
    return Source(given, (door.file_of(given),), None, own.value)


def _is_reader(value: object) -> bool:
    if not isfunction(value):
        return False
    return all(each.default is not each.empty or each.kind in STARRED for each in signature(value).parameters.values())


@cache
def _snapshot(name: str, revision: str | None) -> Path:
    """The files and the card of the hub's data set ``owner/name``, downloaded or from this machine's cache."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    wanted = ["README.md", *(f"*{kind}{packed}" for kind in READERS for packed in ("", *PACKED))]
    only_here(name, "dataset")  # a silent hub is asked once
    try:
        # Returns the cached snapshot when the hub is offline and the revision is already on disk.
        return Path(
            huggingface_hub.snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=wanted)
        )
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        fault = f"the hub did not provide it ({one_line(error)}); check name, revision, network and access"
        if constants.HF_HUB_OFFLINE:  # the client would advise an argument of its own
            fault = "this machine's cache has not all of it, and HF_HUB_OFFLINE=1 is set, by you or after a silence"
        raise DataError(f"{name}: no such file here, and {fault}; or name a local file") from error


def on_hub(given: str) -> bool:
    """Whether a name is taken for one of the hub's, as no such path exists."""
    if door.is_own(given):
        return False
    path = Path(given).expanduser()
    name = given if path.exists() else given.partition(":")[0]
    named = has_hub_form(name) and not path.parent.exists() and file_kind(Path(name)) is None
    return not path.exists() and (named or name in BENCHMARKS)


# Splits.


def file_kind(file: Path) -> str | None:
    """Which of `READERS` reads a file of problems; None for another file."""
    kinds = [kind.lower() for kind in file.suffixes]
    kind = kinds[-2:-1] if kinds[-1:] and kinds[-1] in PACKED else kinds[-1:]
    return kind[0] if kind and kind[0] in READERS else None


def _splits(folder: Path, name: str) -> tuple[Splits, str]:
    """The files in a folder by ``CONFIGURATION/SPLIT``, and the configuration that is read where none is chosen.

    They are those of its card, a README.md as the hub has them; without one, names of files and folders tell, and
    each part is there only where they have it, or `default`.
    """
    files = [
        file.relative_to(folder)
        for file in sorted(folder.rglob("*"))
        if file_kind(file) and not any(map(NO_DATA.fullmatch, file.relative_to(folder).parts)) and file.is_file()
    ]
    card = folder / "README.md"
    head = card.read_text(encoding="utf-8", errors="replace").partition("\n---")[0] if card.is_file() else ""
    if "\nconfigs:" in head and (declared := _declared(card, files, name)):
        return declared
    splits: Splits = {}
    for file in files:
        *parents, last = file.parts
        shard = SHARD.match(last)
        split = shard[1] if shard and parents[-1:] == ["data"] else _split_in(last)
        if split is None:  # everything below train/ belongs to the split, however deep
            place = next((place for place, part in enumerate(parents) if _split_in(part)), len(parents))
            parents, split = parents[:place], _split_in("/".join(parents[place : place + 1]))
        label = "/".join([*(part for part in parents if part != "data"), *filter(None, [split])])
        splits.setdefault(label or "default", []).append(file)
    return splits, ""


def _declared(card: Path, files: Collection[Path], name: str) -> tuple[Splits, str] | None:
    """What a data set's card declares, as `datasets` reads it beside empty files; None, with a warning, if it cannot.

    Of the files in a cache it would follow the links to names without an ending.
    """
    import datasets
    import yaml

    splits: Splits = {}
    with TemporaryDirectory() as aside:
        root, cache_dir = Path(aside).resolve() / "files", f"{aside}/cache"
        for file in files:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).touch()
        try:
            shutil.copy(card, root)
            for config in datasets.get_dataset_config_names(str(root)):
                declared = datasets.load_dataset_builder(str(root), config, cache_dir=cache_dir).config.data_files
                for split, places in declared.items():
                    splits[f"{config}/{split}"] = [Path(place).resolve().relative_to(root) for place in places]
            return splits, datasets.get_dataset_default_config_name(str(root)) or ""
        except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
            log.warning(
                "%s: names of files tell its splits, as datasets cannot read its card (%s)", name, one_line(error)
            )
            return None


def _split_in(name: str) -> str | None:
    return next((WORDS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in WORDS), None)


def _chosen(splits: Splits, choice: str, default: str, role: Role, name: str) -> list[Path]:
    """The files of the one split that is meant, or of all that a pattern takes.

    Training reads a held-out split only where the choice names it.
    """
    if "*" in choice and (labels := _matching(splits, choice)):
        log.info("%s: reads %s", name, ", ".join(labels))
        return [file for label in labels for file in splits[label]]
    labels = _candidates(splits, choice, default, role)
    ends = [label.split("/")[-1] for label in labels]
    held_out = role == "train" and all(split in HELD_OUT and split not in choice.split("/") for split in ends)
    if len(labels) == 1 and not held_out:
        if len(splits) > 1:
            log.info("%s: reads %s, of %s", name, labels[0], ", ".join(sorted(splits)))
        return splits[labels[0]]
    if not labels:
        fault = f"no configuration or split {choice!r}"
    elif held_out:
        fault = "only splits that are held out"
    else:
        fault = f"{len(labels)} splits, and none is chosen"
    known = sorted(splits)
    example = next((label for label in labels or known if label.endswith(role)), known[0])
    listed = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    raise DataError(f"{name}: {fault}; it has {listed}. Write which is meant, as in {name}:{example}")


def _matching(splits: Splits, pattern: str) -> list[str]:
    """The labels that a pattern takes; it may name the configuration `default` that a label leaves out."""
    return [label for label in splits if fnmatchcase(label, pattern) or fnmatchcase(f"default/{label}", pattern)]


def _candidates(splits: Splits, choice: str, default: str, role: Role) -> list[str]:
    """The labels that a choice, or the default configuration without one, may mean: one if it is clear."""
    part = choice or default
    within = [label for label in splits if not part or f"/{part}/" in f"/{label}/"]
    exact = [label for label in (choice, f"{default}/{choice}", f"{part}/{role}", role) if label in within]
    return exact[:1] or [label for label in within if label.endswith(f"/{role}")] or within


# Rows.


def read_rows(file: Path, *, columns: Collection[str] | None = None) -> Iterator[tuple[str, Row]]:
    """The place and content of each row, one at a time; of a table's file perhaps only some columns."""
    kind = file_kind(file) or ".jsonl"
    try:
        refuse_pointer(file)
        yield from READERS[kind](file, columns)
    except (EOFError, zlib.error, lzma.LZMAError, OSError, UnicodeDecodeError, csv.Error) as error:
        what = "copy it again" if file_kind(file) else f"expected a file that ends in {', '.join(READERS)}; unpack it"
        if isinstance(error, UnicodeDecodeError):
            what += ", or save it as UTF-8"
        raise DataError(f"{file}: not a whole {kind} file in UTF-8 ({error}); {what}") from error


def _csv_rows(file: Path, columns: Collection[str] | None) -> Iterator[tuple[str, Row]]:
    text = io.StringIO(_content(file).decode("utf-8"), newline="")
    csv.field_size_limit(sys.maxsize)  # a long solution is no fault
    sign = "\t" if file_kind(file) == ".tsv" else ","
    read = csv.DictReader(text, delimiter=sign)
    _check_names(file, read.fieldnames or ())
    for number, row in enumerate(read, start=1):
        if None in row:
            raise DataError(f"{file}: row {number} has more cells than the header; quote cells that hold {sign!r}")
        yield f"{file}: row {number}", row


def _check_names(file: Path, names: Iterable[str]) -> None:
    """Refuse two columns of one name, of which a row would keep the last."""
    if twice := [name for name, times in Counter(names).items() if name and times > 1]:
        raise DataError(f"{file} has the column {twice[0]!r} more than once; take out or rename all but one")


def _table_rows(file: Path, columns: Collection[str] | None) -> Iterator[tuple[str, Row]]:
    """The rows of a Parquet file, of an Arrow file such as Feather, or of a stream, as `datasets` keeps tables."""
    import numpy as np
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with file.open("rb") as raw:
            if file_kind(file) == ".parquet":
                table = pyarrow.parquet.ParquetFile(raw)
                names = [name for name in table.schema_arrow.names if columns is None or name in columns]
                batches = table.iter_batches(batch_size=PARQUET_ROWS, columns=names)
            elif (head := raw.read(len(ARROW_FILE))) == ARROW_FILE:  # as Feather and others write tables
                read: Any = pyarrow.ipc.open_file
                whole = read(raw)
                batches = map(whole.get_batch, range(whole.num_record_batches))
            elif head.startswith(b"FEA1"):
                raise DataError(f"{file} is Feather of version 1; expected version 2: write it again, or as Parquet")
            else:
                raw.seek(0)
                batches = iter(pyarrow.ipc.open_stream(raw))
            for batch in batches:
                _check_names(file, batch.schema.names)
                short = [field.name for field in batch.schema if field.type == pyarrow.float32()]
                for row in batch.to_pylist():
                    for name in short:  # 0.1, and not the 0.10000000149011612 that Python makes of it
                        row[name] = None if row[name] is None else float(str(np.float32(row[name])))
                    number += 1
                    yield f"{file}: row {number}", row
    except pyarrow.ArrowException as error:
        kind, fault = file.suffix[1:].title(), str(error).partition(".")[0]
        raise DataError(f"{file}: not a whole {kind} file ({fault}); copy it again") from error


def _opened(file: Path) -> io.BufferedIOBase:
    packed = file.suffix.lower()
    if packed == ".zst":
        import pyarrow

        unpack: Any = pyarrow.input_stream
        return io.BufferedReader(unpack(str(file), compression="zstd"))
    if packed in PACKED:
        openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
        return io.BufferedReader(openers[packed](file))
    return file.open("rb")


def _content(file: Path) -> bytes:
    with _opened(file) as raw:
        return raw.read().removeprefix(BOM)


def raw_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, blank ones left out, and without a byte order mark."""
    with _opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            if text := line.removeprefix(BOM).strip():
                yield number, text


def _json_rows(file: Path, columns: Collection[str] | None) -> Iterator[tuple[str, Row]]:
    """The rows of JSONL, of a JSON array, or of objects that take several lines each."""
    parts = ((f"{file}:{number}", line) for number, line in raw_lines(file))
    first = next((line for _, line in raw_lines(file)), b"")
    whole = file_kind(file) == ".json" or first.startswith(b"[") or first == b"{"
    for where, part in [(str(file), _content(file))] if whole else parts:
        try:
            rows = list(_values(part.decode("utf-8")))
        except UnicodeDecodeError:
            raise
        except ValueError as error:
            other = "" if file_kind(file) else f"; another kind of file has a name that ends in {', '.join(READERS)}"
            fault = f"malformed JSON ({error}); expected one object per line, or an array{other}"
            raise DataError(f"{where}: {fault}") from error
        for number, row in enumerate(rows, start=1):
            place = f"{file}: row {number}" if whole else where
            if not isinstance(row, dict):
                raise DataError(f"{place}: got {type(row).__name__}; expected one JSON object per row")
            yield place, row


def _object(pairs: list[tuple[str, object]]) -> Row:
    """A JSON object, whose names differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"an object has the field {twice!r} more than once")
    return found


DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _values(text: str) -> Iterator[object]:
    """The JSON values of a text, one after the other, and those of its arrays."""
    found = NOT_BLANK.search(text)
    while found is not None:
        value, end = DECODER.raw_decode(text, found.start())
        yield from value if isinstance(value, list) else [value]
        found = NOT_BLANK.search(text, end)


def _own_rows(source: Source, reader: Callable[[], Iterable[Row]]) -> Iterator[tuple[str, Row]]:
    """The rows that a user's function yields; it may raise anything."""
    rows: Iterator[Row] | None = None
    for number in count(1):
        try:
            rows = iter(reader()) if rows is None else rows
            row = next(rows)
        except StopIteration:
            return
        except (Exception, SystemExit) as error:
            fault = door.failed_at(error, source.files[0].resolve())
            raise DataError(f"{source.name} fails at row {number}: {fault}") from error
        if not isinstance(row, Mapping):
            raise DataError(f"{source.name}: row {number} is a {type(row).__name__}; expected a dict")
        yield f"{source.name}: row {number}", dict(row)


#: Who reads which kind of file, in the order of preference where a split comes as several.
READERS: dict[str, Callable[[Path, Collection[str] | None], Iterator[tuple[str, Row]]]] = {
    ".parquet": _table_rows, ".arrow": _table_rows, ".feather": _table_rows, ".jsonl": _json_rows,
    ".ndjson": _json_rows, ".json": _json_rows, ".csv": _csv_rows, ".tsv": _csv_rows,
}  # fmt: skip
