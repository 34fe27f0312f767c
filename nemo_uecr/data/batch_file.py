"""Saved batches: the tensors of one step in safetensors, with the method and its settings in the header."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr import door
from nemo_uecr.errors import ConfigError, DataError, ScoreError
from nemo_uecr.files import read_object, replace_file

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.methods import Advantages, Method, RunState
    from nemo_uecr.core.record import ScoredBatch

FORMAT = "nemo_uecr.batch/1"
#: Allowed between two kinds of arithmetic, relative to max(1, |A|).
TOLERANCE = 1e-6
#: Fields of `ScoredBatch` by the names of their tensors in the file.
REQUIRED = {"task_reward": "task_reward_B", "group": "group_B", "mask": "mask_BT", "old_logp": "old_logp_BT"}
OPTIONAL = {
    "teacher_logp": "teacher_logp_BT",
    "teacher_entropy": "teacher_entropy_BT",
    "initial_logp": "initial_logp_BT",
    "student_entropy": "student_entropy_BT",
    "segments": "segments_BT",
}


@dataclass(frozen=True)
class SavedBatch:
    """A step's tensors by their public names, and the header."""

    tensors: dict[str, Tensor]
    header: dict[str, str]

    @property
    def method(self) -> str | None:
        """Method that the run used, None in a file written by hand."""
        return self.header.get("method")

    @property
    def settings(self) -> dict[str, Any]:
        """The method's settings in the run; empty in a file written by hand."""
        settings: dict[str, Any] = json.loads(self.header.get("settings", "{}"))
        return settings

    @property
    def run(self) -> RunState:
        """Where the run was; its beginning in a file written by hand."""
        from nemo_uecr.core.methods import RunState

        return RunState(**json.loads(self.header.get("run", "{}")))

    def configured(self, path: Path) -> Method:
        """The method that the run used, with its settings.

        Raises:
            DataError: There is no such method; or it is in a file that lies beside the batch, or is not the run's.
        """
        from nemo_uecr.core.methods import METHODS, method_of

        name, sha256 = self.method, None
        if name is not None and door.is_own(name):
            # Whoever made the batch named the file: only what the reader has already, and as it was in the run, is run.
            if door.file_of(name).resolve().is_relative_to(path.resolve().parent):
                raise DataError(f"{path} names method {name}, whose file lies beside it; move the file elsewhere")
            sha256 = self.header.get("method_sha256", "none")
        elif name not in METHODS:
            raise DataError(f"{path} names method {name!r}; expected one of {', '.join(METHODS)}")
        try:
            return method_of(name, self.settings, sha256=sha256)
        except ConfigError as error:
            raise DataError(f"{path} names method {name}: {error}") from error


def arithmetic() -> str:
    """What the bits of a result depend on besides its inputs: versions and kind of processor."""
    import platform

    import torch

    import nemo_uecr

    kind = torch.backends.cpu.get_cpu_capability()
    return f"nemo_uecr {nemo_uecr.__version__}, torch {torch.__version__}, {platform.machine()} {kind}"


def save_batch(
    path: Path,
    tensors: dict[str, Tensor],
    *,
    method: Method,
    run: RunState,
    step: int,
    arithmetic: str | None = None,
    teachers: Sequence[str] = (),
) -> None:
    """Write a batch with what its advantages were computed with, and which of several teachers scored each row."""
    from safetensors.torch import save

    header = {
        "format": FORMAT, "method": method.name, "settings": json.dumps(method.settings()),
        "run": json.dumps(vars(run)), "step": str(step),
    }  # fmt: skip
    header |= {} if method.file_sha256 is None else {"method_sha256": method.file_sha256}
    header |= {"arithmetic": arithmetic} if arithmetic else {}
    header |= {"teachers": json.dumps(list(teachers))} if teachers else {}
    replace_file(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata=header))


def load_batch(path: Path) -> SavedBatch:
    """Read a batch and check that what every method needs is there."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            header = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: cannot be read as a saved batch in safetensors form ({error})") from error
    missing = [name for name in REQUIRED if name not in tensors]
    if missing:
        raise DataError(f"{path}: no tensor {missing[0]!r}; expected {', '.join(REQUIRED)} and the teacher's scores")
    return SavedBatch(tensors, header)


def saved_texts(path: Path) -> list[dict[str, Any]]:
    """The texts beside a saved batch: one object per response, in the order of its tensors."""
    rows: list[dict[str, Any]] = read_object(path.with_suffix(".json"))["responses"]
    return rows


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Put the file's name before a `ScoreError` about its tensors."""
    try:
        yield
    except ScoreError as error:
        raise ScoreError(f"{path}: {error}") from error


def scored_batch(saved: SavedBatch, path: Path) -> ScoredBatch:
    """The record that the methods read, from a saved batch."""
    from nemo_uecr.core.record import ScoredBatch, as_bool

    found = {field: saved.tensors.get(name) for name, field in (REQUIRED | OPTIONAL).items()}
    with naming_file(path):
        return ScoredBatch(**found | {"mask_BT": as_bool(saved.tensors["mask"].long())}, run=saved.run)  # type: ignore[arg-type]  # the required ones are there


def turn_labels(ids: Tensor, mask: Tensor, method: Method, tokenizer: Any) -> Tensor | None:
    """[B, T] turn of each sampled token, from 0: a token whose text contains the ``turn_separator`` ends its turn.

    None for a method without one: every response is one turn.
    """
    import torch

    separator = method.settings().get("turn_separator")
    if separator is None:
        return None
    ends = [token for token in set(ids[mask].tolist()) if separator in tokenizer.decode([token])]
    end = mask & torch.isin(ids, torch.tensor(ends, dtype=ids.dtype))
    turn = end.long().cumsum(dim=1) - end.long()  # the separator itself still belongs to the turn it ends
    return turn.masked_fill(~mask, 0)


# The advantages of a saved step, computed again


def compute_again(saved: SavedBatch, batch: ScoredBatch, path: Path) -> Advantages:
    """Advantages by the method and settings in the header; ``batch`` is its record, or one with other scores."""
    from nemo_uecr.core.functions import compute

    with naming_file(path):
        return compute(saved.configured(path), batch)


@dataclass(frozen=True)
class Recomputed:
    """How a step's saved advantages compare with the same ones computed here."""

    same_arithmetic: bool  # versions and kind of processor are those of the run, so that every bit must be the same
    bitwise: bool
    difference: float  # the largest, relative to max(1, |A|)

    @property
    def holds(self) -> bool:
        return self.bitwise if self.same_arithmetic else self.difference <= TOLERANCE


def recompute(path: Path) -> Recomputed:
    """Compute a saved step's advantages again and compare."""
    import torch

    from nemo_uecr.core.methods.base import LOSS_TENSORS

    saved = load_batch(path)
    if "advantage" not in saved.tensors:
        raise DataError(f"{path} has no saved advantages to compare with; expected a step saved by this version's run")
    again = compute_again(saved, scored_batch(saved, path), path).loss_tensors()
    bitwise, difference = True, 0.0
    for name in LOSS_TENSORS & (saved.tensors.keys() | again.keys()):
        before, now = saved.tensors.get(name), again.get(name)
        if before is None or now is None or before.shape != now.shape or before.dtype != now.dtype:
            bitwise, difference = False, float("inf")
            continue
        bitwise &= torch.equal(before.contiguous().view(torch.uint8), now.contiguous().view(torch.uint8))
        distance = (before.double() - now.double()).abs() / before.double().abs().clamp_min(1.0)
        difference = max(difference, float(distance.nan_to_num(nan=float("inf")).max()))
    return Recomputed(saved.header.get("arithmetic") == arithmetic(), bitwise, difference)
