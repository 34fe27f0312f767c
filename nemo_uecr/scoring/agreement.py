"""How the ranks of a group make sure, before the one collective, that they are about to make the same call.

A collective whose ranks bring different sizes aborts the process with gloo and hangs with NCCL, so a
disagreement cannot be found inside it. Each rank therefore leaves a line about its call in the group's key
value store and reads the others' lines, about 0.1 ms; of the tensors they hold the shapes and a digest of the
targets. A rank that refuses its arguments leaves the reason there, so that every rank raises a named error and
none waits for a partner that never comes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

import torch.distributed as dist

from nemo_uecr.scoring.errors import ScoringInputError, ShardMismatchError
from nemo_uecr.scoring.generation import PREFIX, Generation

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardCall:
    """What one rank is about to do. All but the shard's place and width must be equal on all ranks."""

    rows: str
    tokens: int
    hidden: int | None
    dtype: str
    logits_dtype: str
    device: str
    temperatures: list[float]
    entropy: bool
    top1: bool
    valid_vocab: int | None
    targets: str
    first_column: int
    columns: int


SHARD_FIELDS = ("first_column", "columns")
LONGEST_MESSAGE = 1000
IN_VAIN = json.dumps({"refused": "it had waited in vain for another rank"})
"""What a rank leaves for a call it has given up: a partner that comes late must not go on to its collective."""


@dataclass
class _Progress:
    generation: Generation
    calls: int = 0
    last_read: int = -1
    unnamed: list[int] = field(default_factory=list)
    """Calls given up before the group had its name, and with it a place to say so."""


_progress: WeakKeyDictionary[dist.ProcessGroup, _Progress] = WeakKeyDictionary()


class Meeting:
    """One call's meeting of the ranks of a group, as a context manager.

    An exception inside the block is reported to the other ranks, unless the ranks have already agreed.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = _checked_group(group)
        self.rank = dist.get_rank(self.group)
        self.size = dist.get_world_size(self.group)
        self._settled = self.size == 1
        self._progress = _progress.setdefault(self.group, _Progress(Generation(self.rank, self.size)))
        self._prefix = ""
        self._call = self._progress.calls

    def __enter__(self) -> Self:
        # First of all: a rank whose number stood still would meet the others' next call with its own last one.
        self._progress.calls += 1
        if self.size > 1:
            self._progress.unnamed.append(self._call)
            with self._losses_named():
                self._prefix = self._progress.generation.name(self.group.get_group_store())
                self._disown_unnamed()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._settled:
            return
        try:
            self._publish({"refused": _said(error)})
        except dist.DistError as lost:  # the error of this rank says more than a store that is gone
            logger.warning("the other ranks could not be told of an error: %s", lost)

    def agree(self, call: ShardCall) -> int:
        """Compare this rank's call with the others' and return the number of columns of the whole vocabulary.

        Raises:
            ShardMismatchError: a rank refused, or disagrees, or the shards do not tile the vocabulary.
        """
        lines = [asdict(call)]
        if not self._settled:
            with self._losses_named():
                self._publish(asdict(call))
                lines = self._read()
        _compare(lines)
        return _tiled_columns([(line["first_column"], line["columns"]) for line in lines], call.valid_vocab)

    def _key(self, call: int, rank: int) -> str:
        return f"{PREFIX}/call/{self._prefix}/{call}/{rank}"

    def _disown_unnamed(self) -> None:
        """Now that the group has its name, tell late partners of the calls given up without one."""
        unnamed, self._progress.unnamed = self._progress.unnamed, []
        for call in unnamed:
            if call != self._call:
                self.group.get_group_store().set(self._key(call, self.rank), IN_VAIN)

    def _publish(self, line: dict[str, object]) -> None:
        written = json.dumps(line)  # before anything is settled: were this to fail, the others would not know
        store = self.group.get_group_store()
        self._settled = True
        store.set(self._key(self._call, self.rank), written)
        # Having read everyone's previous line, this rank knows that all are done with the line before that.
        if self._progress.last_read == self._call - 1 and self._call >= 2:
            store.delete_key(self._key(self._call - 2, self.rank))

    def _read(self) -> list[dict[str, object]]:
        store = self.group.get_group_store()
        keys = [self._key(self._call, rank) for rank in range(self.size)]
        try:
            store.wait(keys)
            values = [store.get(key) for key in keys]
        except dist.DistStoreError:
            store.set(self._key(self._call, self.rank), IN_VAIN)
            raise
        self._progress.last_read = self._call
        return [json.loads(value) for value in values]

    @contextmanager
    def _losses_named(self) -> Iterator[None]:
        """Name what befalls the store: nobody came in time, or the rank that hosts it is gone."""
        try:
            yield
        except dist.DistStoreError as error:
            raise ShardMismatchError(
                f"not every rank of the group of {self.size} made call {self._call} of this group before its "
                "timeout; check that all ranks score the same micro-batches"
            ) from error
        except dist.DistError as error:
            said = str(error).partition("\n")[0]
            raise ShardMismatchError(
                f"the store of the group of {self.size} was lost in call {self._call} of this group ({said}); "
                "has the process that hosts it, usually rank 0, ended? look at its log"
            ) from error


def _said(error: BaseException) -> str:
    """An error in one line; a message that cannot be written must not keep its name from the others."""
    try:
        message = str(error).partition("\n")[0][:LONGEST_MESSAGE]
    except ValueError:
        message = "its message cannot be written"
    return f"{type(error).__name__}: {message}"


def _checked_group(group: object) -> dist.ProcessGroup:
    if not dist.is_initialized():
        raise ScoringInputError("torch.distributed is not initialised; call init_process_group first")
    if group is None:
        group = dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ScoringInputError("this process is not in the group; call with a group it belongs to")
    if not isinstance(group, dist.ProcessGroup):
        raise ScoringInputError(f"group is {type(group).__name__}, expected a process group, or None for the default")
    try:
        rank = dist.get_rank(group)
    except (ValueError, RuntimeError) as error:  # torch knows it no longer
        raise ScoringInputError("the group has been destroyed; call with one that is in use") from error
    if rank < 0:
        raise ScoringInputError("this process is not in the group; call with a group it belongs to")
    return group


def _compare(lines: list[dict[str, object]]) -> None:
    for rank, line in enumerate(lines):
        if "refused" in line:
            raise ShardMismatchError(f"rank {rank} of the group refused the call: {line['refused']}")
    for name in lines[0]:
        values = [line[name] for line in lines]
        if name not in SHARD_FIELDS and any(value != values[0] for value in values):
            raise ShardMismatchError(
                f"the ranks of the group disagree on {name}: {values} in rank order; "
                "give every rank the same tokens, dtype and options"
            )


def _tiled_columns(shards: list[tuple[int, int]], valid_vocab: int | None) -> int:
    end = 0
    for rank, (first, columns) in enumerate(shards):
        if first != end:
            raise ShardMismatchError(
                f"the shard of rank {rank} starts at column {first}, expected {end}; the shards (start, columns) "
                f"{shards} must tile the vocabulary in rank order: is this the group the weight is sharded over?"
            )
        end += columns
    if end == 0 or (valid_vocab is not None and not 1 <= valid_vocab <= end):
        raise ShardMismatchError(
            f"the {len(shards)} shards hold {end} columns, expected at least valid_vocab = {valid_vocab} "
            "and at least one: is this the group the weight is sharded over?"
        )
    return end
