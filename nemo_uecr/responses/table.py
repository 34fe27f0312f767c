"""The table of responses: its columns, its writer and its reader. docs/responses.md shows how others read it.

A row is a response. A token column is a list with one value per token, from the first that the policy sampled (in a
layout without prompts: from the first of the layout) to the last; ``sampled`` is False on tokens that were observed in
between, whose scores are null.

Shape legend: B = responses, T = tokens of the padded layout, N = sampled tokens in a flat list.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nemo_uecr.errors import DataError
from nemo_uecr.files import replaced_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

FORMAT = "nemo_uecr.responses/1"
#: Key of the file's metadata: a JSON object with the format, and what is common to all rows.
ABOUT = b"nemo_uecr"
#: Tokens of a row group, which is in memory at once when a table is written.
GROUP_TOKENS = 1 << 20


class Column(NamedTuple):
    """A column: the type of a value in Arrow's words, its unit, and what it is."""

    type: str
    unit: str
    meaning: str


#: One value per response; null where a station of the response's way does not know it.
ROWS = {
    "id": Column("string", "", "name of the response, unique in the file"),
    "checkpoint": Column(
        "int64", "steps", "training steps of the policy that generated it; step n's is n - 1, or older"
    ),
    "benchmark": Column("string", "", "set of an evaluation's problem; null in training"),
    "problem": Column("string", "", "id of the problem"),
    "group": Column("string", "", "one prompt by one policy: its responses are compared"),
    "sample": Column("int64", "", "number among the responses to its prompt, from 0"),
    "question": Column("string", "", "the user's turn, without the prompt's template"),
    "context": Column("list<struct<role: string, content: string>>", "", "the turns before the question"),
    "asked": Column("string", "", "a digest of all that is asked, equal for problems that repeat it and are no games"),
    "answer": Column("string", "", "reference answer"),
    "prompt_ids": Column("list<int32>", "", "token ids that the policy read before the response"),
    "response": Column("string", "", "text of the sampled tokens, without special tokens; a newline between turns"),
    "extracted": Column("string", "", "answer that the verifier found"),
    "verdict": Column("string", "", "the verifier's verdict"),
    "correct": Column("bool", "", "whether the response counts as correct"),
    "reward": Column("float32", "1", "task reward R^task that trained"),
    "truncated": Column("bool", "", "generation ended at its token limit"),
    "teacher_reward": Column("float64", "nats", "R^T, the mean of the clipped gap"),
    "advantage_unified": Column("float64", "1", "A^U"),
    "advantage_task": Column("float64", "1", "A^task|U; of a method without PUU its task advantage"),
    "advantage_teacher": Column("float64", "1", "A^T|U"),
    "unified_std": Column("float64", "1", "the group's standard deviation of R^U"),
    "centre": Column("float64", "1", "the mean that ECR's projection subtracts"),
    "teacher": Column("string", "", "name of its teacher"),
    "teacher_prompt_sha256": Column("string", "", "of the prompt that the teacher read: ids in decimal, with commas"),
    "teacher_response_sha256": Column("string", "", "of the response after it"),
    "cut": Column("bool", "", "scoring ended at its length limit, and the lists with it"),
    "ids_from": Column("string", "", "`sampled`, or `text` where the tokenizer made the token ids from the text"),
}
#: One value per token.
TOKENS = {
    "token_ids": Column("int32", "", "the tokens"),
    "tokens": Column("string", "", "the text of each token; in evaluations with an environment alone"),
    "sampled": Column("bool", "", "True: the policy sampled it; False: it was observed between sampled ones"),
    "turn": Column("int32", "", "turn of the response, from 0; of several turns, or for a method that reads them"),
    "old_logp": Column("float32", "nats", "log pi_old, the policy before the update, at temperature 1"),
    "old_logp_rollout": Column("float32", "nats", "the same at the rollout temperature"),
    "generator_logp_rollout": Column(
        "float32", "nats", "log mu, the policy that generated it, at the rollout temperature, recorded at the draw"
    ),
    "ref_logp": Column("float32", "nats", "log pi_ref at the rollout temperature, for the reference KL"),
    "initial_logp": Column("float32", "nats", "log pi_0, the initial student, at temperature 1"),
    "student_entropy": Column("float32", "nats", "entropy of pi_old over the vocabulary"),
    "teacher_logp": Column("float32", "nats", "log pi_T, the teacher, at temperature 1"),
    "teacher_entropy": Column("float32", "nats", "entropy of pi_T over the vocabulary"),
    "teacher_rank": Column("int32", "", "rank of the token among the teacher's logits, 1 the largest"),
    "weight": Column("float32", "1", "ECR's token weight w"),
    "residual": Column("float32", "1", "ECR's residual q; written by `nemo-uecr replay`, like the next two"),
    "direction": Column("float32", "1", "ECR's direction d"),
    "confidence": Column("float32", "1", "ECR's confidence c"),
    "advantage": Column("float32", "1", "advantage that trained"),
    "advantage_opd": Column("float32", "1", "advantage of the second surrogate, for a method that has one"),
    "loss_mask": Column("bool", "", "tokens in the loss, for a method that leaves some out"),
}
CONTEXT = ROWS["context"].type
#: Token columns that observed tokens have as well.
OF_OBSERVED = ("token_ids", "sampled", "loss_mask")
#: Endings of the files that held responses before 0.4.0.
OLD = (".safetensors", ".jsonl")
#: Beginnings of the names that a run chooses: a component of its reward, and a further policy's log-probabilities.
REWARD, ANCHOR = "reward/", "anchor_"
PART_OF_REWARD = Column("float64", "1", "a component of the reward before its weight")
ANCHOR_LOGP = Column("float32", "nats", "log-probability by a further policy of `nemo-uecr score`, at temperature 1")


def column_of(name: str) -> Column:
    """What a column of this name is."""
    if name.startswith((REWARD, ANCHOR)):
        return PART_OF_REWARD if name.startswith(REWARD) else ANCHOR_LOGP
    return (ROWS | TOKENS)[name]


# Writing


def write_responses(
    path: Path,
    rows: Mapping[str, Any],
    tokens: Mapping[str, Tensor],
    *,
    about: Mapping[str, Any],
    word: Callable[[int], str] | None = None,
    prompts: bool = False,
) -> None:
    """Write a table, row group by row group; the file is there as a whole or not at all.

    Args:
        path: The file.
        rows: One value per response, by column.
        tokens: [B, T] tensors by column, ``sampled`` among them; of observed tokens and padding only ids are kept.
        about: What is common to all rows, for the file's metadata.
        word: The text of a token id, for the column ``tokens``.
        prompts: Whether the layout [B, T] begins with the prompts, which ``prompt_ids`` has.
    """
    sampled_BT = tokens["sampled"].bool().numpy()
    start_B, end_B = _spans(sampled_BT, rows, prompts=prompts)
    metadata = {"format": FORMAT, **about, "width": sampled_BT.shape[1], "prompts": prompts}
    common = {ABOUT: json.dumps(metadata)}
    groups = _groups(end_B - start_B)
    tables = (_row_group(rows, tokens, sampled_BT, start_B, end_B, group, word) for group in groups)
    _write(path, (table.replace_schema_metadata(common) for table in tables))


def _write(path: Path, tables: Iterator[Any]) -> None:
    """A row group of each table."""
    import pyarrow.parquet as parquet

    first = next(tables)
    with replaced_file(path) as file, parquet.ParquetWriter(file, first.schema, **_encoding(first.schema)) as writer:
        for table in itertools.chain([first], tables):
            writer.write_table(table)


def sampled_tokens(
    ids: Sequence[Sequence[int]], spans: Sequence[Sequence[tuple[int, int]]] | None = None, *, turns: bool = False
) -> dict[str, Tensor]:
    """The token columns of responses: their ids, whether the policy sampled them, and where asked for their turns.

    ``spans`` has where the runs of sampled tokens of each begin and end; None: every token was sampled.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    rows = [torch.tensor(own, dtype=torch.long) for own in ids]
    sampled = [torch.zeros_like(own, dtype=torch.bool) for own in rows]
    turn = [torch.zeros_like(own) for own in rows]
    for own, numbers, places in zip(sampled, turn, spans or [[(0, len(own))] for own in ids], strict=True):
        for number, (start, end) in enumerate(places):
            own[start:end], numbers[start:end] = True, number
    padded = {"token_ids": rows, "sampled": sampled} | ({"turn": turn} if turns else {})
    return {name: pad_sequence(own, batch_first=True) for name, own in padded.items()}


def _encoding(schema: Any) -> dict[str, Any]:
    """Floats with their bytes apart, which compresses and keeps every bit; strings by dictionary; checksums."""
    leaves = {field.name: getattr(field.type, "value_type", field.type) for field in schema}
    leaf = {name: name if kind == schema.field(name).type else f"{name}.list.element" for name, kind in leaves.items()}
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_byte_stream_split": [leaf[name] for name, kind in leaves.items() if str(kind) in ("float", "double")],
        "use_dictionary": [leaf[name] for name, kind in leaves.items() if str(kind) == "string"],
        "write_page_checksum": True,
    }


def _spans(
    sampled_BT: NDArray[np.bool_], rows: Mapping[str, Any], *, prompts: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each row's token lists begin and end in the layout: after its prompt, and after its last sampled token."""
    import numpy as np

    count, width = sampled_BT.shape
    start_B = np.asarray([len(ids) for ids in rows["prompt_ids"]] if prompts else np.zeros(count), dtype=np.int64)
    last_B = np.where(sampled_BT.any(axis=1), width - sampled_BT[:, ::-1].argmax(axis=1), 0)
    return start_B, np.maximum(start_B, last_B)


def _groups(length_B: NDArray[np.int64]) -> Iterator[slice]:
    """Rows of each row group: as many as have `GROUP_TOKENS` together, at least one."""
    start = tokens = 0
    for row, length in enumerate(length_B.tolist()):
        if row > start and tokens + length > GROUP_TOKENS:
            yield slice(start, row)
            start, tokens = row, 0
        tokens += length
    yield slice(start, len(length_B))


def _row_group(
    rows: Mapping[str, Any],
    tokens: Mapping[str, Tensor],
    sampled_BT: NDArray[np.bool_],
    start_B: NDArray[np.int64],
    end_B: NDArray[np.int64],
    group: slice,
    word: Callable[[int], str] | None,
) -> Any:
    import numpy as np
    import pyarrow

    place_T = np.arange(sampled_BT.shape[1])
    kept_bT = (place_T >= start_B[group, None]) & (place_T < end_B[group, None])
    offsets = pyarrow.array(np.concatenate([[0], np.cumsum(kept_bT.sum(axis=1))]), type=pyarrow.int32())
    observed_N = ~sampled_BT[group][kept_bT]
    columns: dict[str, Any] = {
        name: pyarrow.array(rows[name][group], type=_type_of(name, rows[name]))
        for name in (*ROWS, *sorted(rows.keys() - ROWS.keys()))
        if name in rows
    }
    for name in (*TOKENS, *sorted(tokens.keys() - TOKENS.keys())):
        if name in tokens:
            value_N = tokens[name][group].numpy()[kept_bT]
            unknown_N = observed_N if name not in OF_OBSERVED and observed_N.any() else None
            flat = pyarrow.array(value_N, type=_type_of(name, value_N), mask=unknown_N)
            columns[name] = pyarrow.ListArray.from_arrays(offsets, flat)
        if name == "tokens" and word is not None:
            id_W, place_N = np.unique(tokens["token_ids"][group].numpy()[kept_bT], return_inverse=True)
            text_W = pyarrow.array([word(token) for token in id_W.tolist()], type=pyarrow.string())
            columns[name] = pyarrow.ListArray.from_arrays(offsets, text_W.take(pyarrow.array(place_N)))
    return pyarrow.table(columns)


def _type_of(name: str, values: Any) -> Any:
    """Arrow's type of a column's values: floats in an array keep theirs, float64 too."""
    import pyarrow

    if getattr(getattr(values, "dtype", None), "kind", "") == "f":
        return pyarrow.from_numpy_dtype(values.dtype)
    kind = column_of(name).type
    turn = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
    lists = {"list<int32>": pyarrow.list_(pyarrow.int32()), CONTEXT: pyarrow.list_(turn)}
    return lists.get(kind) or pyarrow.type_for_alias(kind)


def write_again(
    source: Responses,
    path: Path,
    *,
    rows: Mapping[str, Any],
    tokens: Mapping[str, Tensor],
    without: Set[str],
    about: Mapping[str, Any],
) -> None:
    """Write a table with other columns: those of ``source`` less some, and these."""
    own = [name for name in source.names if name not in without and (name in ROWS or name.startswith(REWARD))]
    write_responses(
        path,
        {**{name: _declared(name, source.column(name)) for name in own}, **rows},
        {**{name: source.padded(name) for name in source.token_columns if name not in without}, **tokens},
        about=about,
        word=source.texts().__getitem__ if "tokens" in source.names else None,
        prompts=bool(source.about.get("prompts")),
    )


def _declared(name: str, values: Sequence[Any]) -> Sequence[Any]:
    """A column that others may have written with numbers for names."""
    text = column_of(name).type == "string"
    return [None if value is None else str(value) for value in values] if text else values


def part_paths(folder: Path) -> list[Path]:
    """The parts of a table that is written as its rows come, in order."""
    return sorted(folder.glob("part-??????.parquet"))


def next_part(folder: Path) -> Path:
    """The file for the part after those in the folder."""
    paths = part_paths(folder)
    return folder / f"part-{int(paths[-1].stem.removeprefix('part-')) + 1 if paths else 0:06d}.parquet"


def join_responses(parts: Sequence[Path], path: Path) -> None:
    """One table of several of one schema, a row group at a time, with the metadata of the first."""
    _write(path, itertools.chain.from_iterable(map(_row_groups, parts)))


def _row_groups(path: Path) -> Iterator[Any]:
    with _opened(path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group)


# Reading


@dataclass(frozen=True)
class Responses:
    """A table on disk, whose columns are read when they are asked for."""

    path: Path
    about: Mapping[str, Any]  # what is common to all rows; empty in a file that others wrote
    names: tuple[str, ...]  # of the columns
    count: int  # of the rows

    def __len__(self) -> int:
        return self.count

    def column(self, name: str) -> list[Any]:
        """A column as Python values; of all rows None where the table has no such column of `ROWS`."""
        if name not in self.names and name in ROWS:
            return [None] * len(self)
        return list(self._read(name).to_pylist())

    def numbers(self, name: str) -> NDArray[Any]:
        """[B] a column of numbers; NaN where it is null."""
        import numpy as np

        return np.array(self._read(name).to_numpy())

    def words(self, rows: Sequence[int]) -> list[list[str]]:
        """The texts of the sampled tokens of some responses."""
        texts, sampled = (self._read(name).take(list(rows)).to_pylist() for name in ("tokens", "sampled"))
        return [list(itertools.compress(own, kept)) for own, kept in zip(texts, sampled, strict=True)]

    def observed(self, rows: Sequence[int]) -> list[dict[int, str]]:
        """What some responses observed, by the number of the sampled token that follows."""
        texts, sampled = (self._read(name).take(list(rows)).to_pylist() for name in ("tokens", "sampled"))
        found = []
        for own, kept in zip(texts, sampled, strict=True):
            between: dict[int, str] = {}
            for place, (text, mine) in enumerate(zip(own, kept, strict=True)):
                if not mine:
                    number = sum(kept[:place])
                    between[number] = between.get(number, "") + text
            found.append(between)
        return found

    def texts(self) -> dict[int, str]:
        """The text of each token id that occurs."""
        import numpy as np

        id_W, place_W = np.unique(self._flat("token_ids"), return_index=True)
        return dict(zip(id_W.tolist(), self._elements("tokens").take(place_W).to_pylist(), strict=True))

    def tokens(self, name: str) -> Tensor:
        """[N] values of the sampled tokens in a flat list."""
        import torch

        return torch.from_numpy(self._flat(name)[self._sampled_N])

    def padded(self, name: str) -> Tensor:
        """[B, T] values in the layout that was saved; 0 in its padding, and scores on observed tokens."""
        import torch

        flat = torch.from_numpy(self._flat(name))
        whole_BT = torch.zeros(self._kept_BT.shape, dtype=flat.dtype)
        whole_BT[self._kept_BT] = flat
        if name == "token_ids" and self.about.get("prompts"):
            before_BT = torch.arange(whole_BT.shape[1]) < torch.from_numpy(self._start_B)[:, None]
            whole_BT[before_BT] = torch.from_numpy(self._flat("prompt_ids"))
        return whole_BT

    @property
    def token_columns(self) -> tuple[str, ...]:
        """The columns with one number per token."""
        return tuple(name for name in self.names if name != "tokens" and (name in TOKENS or name.startswith(ANCHOR)))

    @cached_property
    def count_B(self) -> NDArray[np.int64]:
        """[B] sampled tokens of each response."""
        import numpy as np

        ends = np.concatenate([[0], np.cumsum(self._length_B)])
        before = np.concatenate([[0], np.cumsum(self._sampled_N)])
        return np.asarray(before[ends[1:]] - before[ends[:-1]])

    @cached_property
    def _length_B(self) -> NDArray[np.int64]:
        import numpy as np
        import pyarrow.compute as compute

        return np.asarray(compute.list_value_length(self._read("sampled")).to_numpy(), dtype=np.int64)

    @cached_property
    def _sampled_N(self) -> NDArray[np.bool_]:
        return self._flat("sampled")

    @cached_property
    def _start_B(self) -> NDArray[np.int64]:
        import numpy as np
        import pyarrow.compute as compute

        if not self.about.get("prompts"):
            return np.zeros_like(self._length_B)
        return np.asarray(compute.list_value_length(self._read("prompt_ids")).to_numpy(), dtype=np.int64)

    @cached_property
    def _kept_BT(self) -> Tensor:
        import torch

        start_B, length_B = torch.from_numpy(self._start_B)[:, None], torch.from_numpy(self._length_B)[:, None]
        place_T = torch.arange(max(int(self.about.get("width", 0)), int((start_B + length_B).max())))
        return (place_T >= start_B) & (place_T < start_B + length_B)

    def _flat(self, name: str) -> NDArray[Any]:
        """Every value of a list column, 0 where it is null; integers are int64."""
        import numpy as np
        import pyarrow

        values = self._elements(name)
        if values.null_count:
            values = values.fill_null(pyarrow.scalar(0).cast(values.type))
        found = values.to_numpy(zero_copy_only=False)
        return np.array(found, dtype=np.int64 if found.dtype.kind == "i" else found.dtype)

    def _elements(self, name: str) -> Any:
        """The values of a list column in one array."""
        import pyarrow

        return pyarrow.concat_arrays([chunk.flatten() for chunk in self._read(name).chunks])

    def _read(self, name: str) -> Any:
        if name not in self.names:
            raise DataError(f"{self.path} has no column {name!r}; it has {', '.join(self.names)}")
        with _opened(self.path) as file:
            return file.read(columns=[name])[name]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file, its checksums verified; DataError where it is no Parquet file, or a damaged one."""
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be read as a table of responses, a Parquet file ({first})") from error


def read_responses(path: Path) -> Responses:
    """Open a table.

    Raises:
        DataError: The file is no table, is damaged, or comes from a version before 0.4.0.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; expected a table of responses, as RUN/batches/step-000001.parquet")
    if path.suffix in OLD:
        raise DataError(
            f"{path} has a format of version 0.3.0 or earlier; expected a table of responses (.parquet): read it with "
            "the version that wrote it"
        )
    with _opened(path) as file:
        schema, count = file.schema_arrow, file.metadata.num_rows
    about = json.loads((schema.metadata or {}).get(ABOUT, "{}"))
    if about.get("format", FORMAT) != FORMAT:
        raise DataError(f"{path}: format {about['format']!r}; expected {FORMAT!r}")
    return Responses(path, about, tuple(schema.names), count)
