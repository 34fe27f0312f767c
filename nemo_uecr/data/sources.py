"""Where problems are: a file, a folder or a data set on the hub; which of its splits is meant; and its rows.

A source is written PLACE or PLACE:CHOICE, where CHOICE names a split, a configuration or both (`main/train`), or is a
pattern that takes several together (`*/train`).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import re
import sys
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Literal

from nemo_uecr.errors import DataError
from nemo_uecr.generation.models import has_hub_form, one_line, only_here

log = logging.getLogger(__name__)

Row = dict[str, object]
Splits = dict[str, list[Path]]
#: The split that is taken where a source has several: training reads `train`, everything else `test`.
Role = Literal["train", "test"]
#: What a file can be, in the order of preference where a split comes as several; texts may end in .gz.
KINDS = (".parquet", ".arrow", ".jsonl", ".json", ".csv")
#: JSON that describes a data set, caches of `datasets`, and hidden files.
NO_DATA = re.compile(r"(?:dataset_\w+|state|config|manifest|metadata)\.json|cache-.*\.arrow|(?:\.|__).*")
#: Words in the names of files and folders that name a split, as the hub reads them.
WORDS = {
    word: split
    for split, words in {
        "train": "train training", "validation": "validation valid val dev", "test": "test testing eval evaluation",
    }.items() for word in words.split()
}  # fmt: skip
SHARD = re.compile(r"(\w+)-\d{5}-of-\d{5}")
DECODER = json.JSONDecoder()
NOT_BLANK = re.compile(r"\S")
BOM = b"\xef\xbb\xbf"
PARQUET_ROWS = 1024


@dataclass(frozen=True)
class Source:
    """The files of one split, in order, of a path or hub name; the commit is None for local files."""

    name: str
    files: tuple[Path, ...]
    revision: str | None


def find_source(given: str, role: Role, *, revision: str | None = None) -> Source:
    """The files of a source that training (``train``) or a benchmark (``test``) reads.

    Args:
        given: file, folder or ``owner/name`` on the hub, each with ``:CHOICE`` or without.
        role: the split that is taken where there are several and ``given`` chooses none.
        revision: branch, tag or commit on the hub; None is its main branch.

    Raises:
        DataError: nothing is there, or several splits are and none is chosen.
    """
    name, choice = given, ""
    if not Path(given).expanduser().exists() and ":" in given:
        name, _, choice = given.rpartition(":")
    path, hub = Path(name).expanduser(), on_hub(name)
    if path.is_file() and not choice:
        return Source(name, (path,), None)
    splits = _hub_splits(name, choice, revision) if hub else _splits(path) if path.is_dir() else {}
    if not splits:
        raise DataError(
            f"no file {path.absolute()}, or none of problems in it; expected one that ends in {', '.join(KINDS)}, or a "
            "folder or a data set on the hub with such files"
        )
    files = _chosen(splits, choice, role, name)
    kind = next(kind for kind in KINDS if any(_kind(file) == kind for file in files))
    if left := [file.name for file in files if _kind(file) != kind]:
        log.warning("%s: its %s files are read, and not %s", given, kind, ", ".join(left))
    files = [file for file in files if _kind(file) == kind]
    if not hub:
        return Source(name, tuple(path / file for file in files), None)
    import huggingface_hub

    with _provided(name):
        fetch = partial(huggingface_hub.hf_hub_download, name, repo_type="dataset", revision=revision)
        found = [Path(fetch(filename=str(file))) for file in files]
    return Source(name, tuple(found), found[0].parents[len(files[0].parts) - 1].name)


# The hub.


def _hub_splits(name: str, choice: str, revision: str | None) -> Splits:
    """What `_splits` finds, of the hub's data set ``owner/name``."""
    import huggingface_hub
    from huggingface_hub import errors

    fault = None
    if not only_here(name, "dataset"):
        try:
            return _listed(name, choice, revision)
        except DataError:
            raise
        except (errors.HfHubHTTPError, errors.HTTPError, OSError, ValueError, RuntimeError) as error:
            fault = one_line(error)
    wanted = [f"*{kind}{packed}" for kind in KINDS for packed in ("", ".gz")]
    with _provided(name):  # from the cache, where the hub is offline and the revision is on disk
        folder = huggingface_hub.snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=wanted)
    if fault:
        log.warning("%s: splits are taken from the names of its files, as datasets lists none (%s)", name, fault)
    return _splits(Path(folder))


def _listed(name: str, choice: str, revision: str | None) -> Splits:
    """The same of the chosen or default configurations, as `datasets` reads them from the data set's card."""
    import datasets

    configs = datasets.get_dataset_config_names(name, revision=revision)
    chosen = [each for each in configs if fnmatchcase(each, choice.partition("/")[0])]
    if not chosen:
        default = datasets.get_dataset_default_config_name(name, revision=revision)
        if default is None:
            raise _unclear(name, f"{len(configs)} configurations, and none is chosen", configs, configs[0])
        chosen = [default]
    splits: Splits = {}
    for config in (datasets.load_dataset_builder(name, each, revision=revision).config for each in chosen):
        if config.data_files is None:  # tables that `datasets` made earlier, by a script that it runs no more
            raise ValueError("it has a script")
        for split, urls in config.data_files.items():
            files = [Path(url.removeprefix(f"hf://datasets/{name}@").partition("/")[2]) for url in urls]
            label = "/".join(part for part in (config.name, str(split)) if part != "default")
            splits |= {label: kept} if (kept := [file for file in files if _kind(file)]) else {}
    return splits


@contextmanager
def _provided(name: str) -> Iterator[None]:
    """What the hub's client raises, in one line."""
    from huggingface_hub import constants, errors

    try:
        yield
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        fault = f"the hub did not provide it ({one_line(error)})"
        if constants.HF_HUB_OFFLINE:  # the client would advise an argument of its own
            fault = "it is not in this machine's cache, and HF_HUB_OFFLINE=1 is set, by you or after the hub was silent"
        raise DataError(f"{name}: no such file here, and {fault}; name a local file or check the network") from error


def on_hub(given: str) -> bool:
    """Whether a name is taken for one of the hub's, as no such path exists."""
    path = Path(given).expanduser()
    name = given if path.exists() else given.partition(":")[0]
    return not path.exists() and has_hub_form(name) and not path.parent.exists() and _kind(Path(name)) is None


# Splits.


def _kind(file: Path) -> str | None:
    suffix = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    return suffix if suffix in KINDS else None


def _splits(folder: Path) -> Splits:
    """The files in a folder by ``CONFIGURATION/SPLIT``, each part only where names have it, or `default`."""
    splits: Splits = {}
    for file in sorted(folder.rglob("*")):
        *parents, name = file.relative_to(folder).parts
        if _kind(file) is None or any(map(NO_DATA.fullmatch, (*parents, name))) or not file.is_file():
            continue
        shard = SHARD.match(name)
        split = shard[1] if shard and parents[-1:] == ["data"] else _split_in(name)
        if split is None:  # everything below train/ belongs to the split, however deep
            place = next((place for place, part in enumerate(parents) if _split_in(part)), len(parents))
            parents, split = parents[:place], _split_in("/".join(parents[place : place + 1]))
        label = "/".join([*(part for part in parents if part != "data"), *filter(None, [split])])
        splits.setdefault(label or "default", []).append(file.relative_to(folder))
    return splits


def _split_in(name: str) -> str | None:
    return next((WORDS[word] for word in re.split(r"[^a-z]+", name.lower()) if word in WORDS), None)


def _chosen(splits: Splits, choice: str, role: Role, name: str) -> list[Path]:
    forms = (choice, f"{choice}/*", f"*/{choice}") if choice else ("*",)
    found = [label for label in splits if any(fnmatchcase(label, form) for form in forms)]
    if "*" in choice and found:
        return [file for label in found for file in splits[label]]
    exact = [label for label in (choice, role, f"{choice}/{role}") if label in found]  # before other configurations'
    only = exact[:1] or [label for label in found if label.endswith(f"/{role}")] or found
    held_out = role == "train" and not choice and all(label.split("/")[-1] in ("test", "validation") for label in only)
    if len(only) == 1 and not held_out:
        if len(splits) > 1:
            log.info("%s: reads %s, of %s", name, only[0], ", ".join(sorted(splits)))
        return splits[only[0]]
    unclear = "only splits that are held out" if held_out else f"{len(only)} splits, and none is chosen"
    what = unclear if found else f"no split {choice!r}"
    labels = sorted(splits)
    example = next((label for label in only or labels if label.endswith(role)), labels[0])
    raise _unclear(name, what, labels, example)


def _unclear(name: str, what: str, labels: list[str], example: str) -> DataError:
    listed = ", ".join(labels[:20]) + (f" and {len(labels) - 20} more" if len(labels) > 20 else "")
    return DataError(f"{name}: {what}; it has {listed}. Write which is meant, as in {name}:{example}")


# Rows.


def read_rows(file: Path, *, columns: Collection[str] | None = None) -> Iterator[tuple[str, Row]]:
    """The place and content of each row, one at a time; of a table's file perhaps only some columns."""
    kind = _kind(file)
    try:
        if kind in (".parquet", ".arrow"):
            yield from _table_rows(file, kind, columns)
        elif kind == ".csv":
            text = io.StringIO(_content(file).decode("utf-8"), newline="")
            csv.field_size_limit(sys.maxsize)  # a long solution is no fault
            for number, row in enumerate(csv.DictReader(text), start=1):
                if None in row:
                    raise DataError(f"{file}: row {number} has more cells than the header; quote cells with commas")
                yield f"{file}: row {number}", row
        else:
            yield from _json_rows(file)
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: not a whole {kind or 'JSONL'} file in UTF-8 ({error}); copy it again") from error


def _table_rows(file: Path, kind: str, columns: Collection[str] | None) -> Iterator[tuple[str, Row]]:
    import numpy as np
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with file.open("rb") as raw:
            if kind == ".parquet":
                table = pyarrow.parquet.ParquetFile(raw)
                names = [name for name in table.schema_arrow.names if columns is None or name in columns]
                batches = table.iter_batches(batch_size=PARQUET_ROWS, columns=names)
            else:  # as `datasets` keeps tables
                batches = iter(pyarrow.ipc.open_stream(raw))
            for batch in batches:
                short = [field.name for field in batch.schema if field.type == pyarrow.float32()]
                for row in batch.to_pylist():
                    for name in short:  # 0.1, and not the 0.10000000149011612 that Python makes of it
                        row[name] = None if row[name] is None else float(str(np.float32(row[name])))
                    number += 1
                    yield f"{file}: row {number}", row
    except pyarrow.ArrowException as error:
        fault = str(error).partition(".")[0]
        raise DataError(f"{file}: not a whole {kind[1:].title()} file ({fault}); copy it again") from error


def _opened(file: Path) -> io.BufferedIOBase:
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")


def _content(file: Path) -> bytes:
    with _opened(file) as raw:
        return raw.read().removeprefix(BOM)


def raw_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, blank ones left out, and without a byte order mark."""
    with _opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            if text := line.removeprefix(BOM).strip():
                yield number, text


def _json_rows(file: Path) -> Iterator[tuple[str, Row]]:
    """The rows of JSONL, of a JSON array, or of objects that take several lines each."""
    parts = ((f"{file}:{number}", line) for number, line in raw_lines(file))
    first = next((line for _, line in raw_lines(file)), b"")
    whole = _kind(file) == ".json" or first.startswith(b"[") or first == b"{"
    for where, part in [(str(file), _content(file))] if whole else parts:
        try:
            rows = list(_values(part.decode("utf-8")))
        except ValueError as error:
            raise DataError(f"{where}: malformed JSON ({error}); expected one object per line, or an array") from error
        for number, row in enumerate(rows, start=1):
            place = f"{file}: row {number}" if whole else where
            if not isinstance(row, dict):
                raise DataError(f"{place}: got {type(row).__name__}; expected one JSON object per row")
            yield place, row


def _values(text: str) -> Iterator[object]:
    """The JSON values of a text, one after the other, and those of its arrays."""
    found = NOT_BLANK.search(text)
    while found is not None:
        value, end = DECODER.raw_decode(text, found.start())
        yield from value if isinstance(value, list) else [value]
        found = NOT_BLANK.search(text, end)
