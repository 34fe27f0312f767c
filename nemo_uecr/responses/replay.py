"""A saved batch as the methods read it: its record, the method and settings of its run, its advantages again."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr import door
from nemo_uecr.errors import ConfigError, DataError, ScoreError
from nemo_uecr.responses.table import Responses, read_responses, write_again

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from nemo_uecr.core.methods import Advantages, Method, RunState
    from nemo_uecr.core.record import ScoredBatch

#: Allowed between two kinds of arithmetic, relative to max(1, |A|).
TOLERANCE = 1e-6
#: What every method needs of a table, and its token columns by the fields of `ScoredBatch`.
NEEDED = ("reward", "group", "sampled", "old_logp")
SCORES = {
    "old_logp": "old_logp_BT",
    "teacher_logp": "teacher_logp_BT",
    "teacher_entropy": "teacher_entropy_BT",
    "initial_logp": "initial_logp_BT",
    "student_entropy": "student_entropy_BT",
    "turn": "segments_BT",
}


#: Columns that a method returns; those that a run keeps.
OF_A_METHOD = frozenset({
    "advantage", "advantage_opd", "loss_mask", "weight", "residual", "direction", "confidence", "teacher_reward",
    "advantage_unified", "advantage_task", "advantage_teacher", "unified_std", "centre",
})  # fmt: skip
WITHOUT_DETAILS = OF_A_METHOD - {"residual", "direction", "confidence"}


def arithmetic() -> str:
    """What the bits of a result depend on besides its inputs: versions and kind of processor."""
    import platform

    import torch

    import nemo_uecr

    kind = torch.backends.cpu.get_cpu_capability()
    return f"nemo_uecr {nemo_uecr.__version__}, torch {torch.__version__}, {platform.machine()} {kind}"


def about_step(method: Method, run: RunState, *, step: int) -> dict[str, object]:
    """What a step's table says of all its rows: with what the advantages were computed."""
    about = {
        "step": step, "method": method.name, "method_revision": method.revision, "settings": method.settings(),
        "run": vars(run),
    }  # fmt: skip
    return about | ({} if method.file_sha256 is None else {"method_sha256": method.file_sha256})


def advantage_columns(
    advantages: Advantages, names: Set[str]
) -> tuple[dict[str, NDArray[np.float64]], dict[str, Tensor]]:
    """What a method returned, these of it: its [B] columns, and its [B, T] columns."""
    made = {name: tensor for name, tensor in advantages.named_tensors().items() if name in names}
    made_B = {name: tensor.numpy() for name, tensor in made.items() if tensor.ndim == 1}
    return made_B, {name: tensor for name, tensor in made.items() if tensor.ndim == 2}


def write_replayed(saved: Responses, path: Path, method: Method, run: RunState, advantages: Advantages) -> None:
    """Write a step's table with a method's advantages, and all that it computed on the way."""
    about = {**saved.about, **about_step(method, run, step=run.step + 1), "arithmetic": arithmetic()}
    made_B, made_BT = advantage_columns(advantages, OF_A_METHOD)
    write_again(saved, path, rows=made_B, tokens=made_BT, without=OF_A_METHOD, about=about)


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Put the file's name before a `ScoreError` about its numbers."""
    try:
        yield
    except ScoreError as error:
        raise ScoreError(f"{path}: {error}") from error


def scored_batch(saved: Responses) -> ScoredBatch:
    """The record that the methods read, in the layout that was saved."""
    import torch

    from nemo_uecr.core.methods import RunState
    from nemo_uecr.core.record import ScoredBatch, as_bool, group_ids

    if missing := [name for name in NEEDED if name not in saved.names]:
        raise DataError(
            f"{saved.path} has no column {missing[0]!r}; expected {', '.join(NEEDED)} and the teacher's scores"
        )
    scores: dict[str, Any] = {field: saved.padded(name) for name, field in SCORES.items() if name in saved.names}
    with naming_file(saved.path):
        return ScoredBatch(
            task_reward_B=torch.from_numpy(saved.numbers("reward")),
            group_B=group_ids(saved.column("group"), torch.device("cpu")),
            mask_BT=as_bool(saved.padded("sampled")),
            run=RunState(**saved.about.get("run", {})),
            **scores,
        )


def method_of_run(saved: Responses) -> Method:
    """The method that the step's run used, with its settings.

    Raises:
        DataError: There is no such method; or it is in a file that lies beside the table, or is not the run's.
        CheckpointError: The method had another equation in the run.
    """
    from nemo_uecr.core.methods import METHODS, check_revision, method_of

    path, name, sha256 = saved.path, saved.about.get("method"), None
    if name is not None and door.is_own(name):
        # Whoever made the table named the file: only what the reader has already, and as it was in the run, is run.
        if door.file_of(name).resolve().is_relative_to(path.resolve().parent):
            raise DataError(f"{path} names method {name}, whose file lies beside it; move the file elsewhere")
        sha256 = saved.about.get("method_sha256", "none")
    elif name not in METHODS:
        raise DataError(f"{path} names method {name!r}; expected one of {', '.join(METHODS)}")
    try:
        method = method_of(name, saved.about["settings"], sha256=sha256)
    except ConfigError as error:
        raise DataError(f"{path} names method {name}: {error}") from error
    check_revision(path, method, saved.about)
    return method


def compute_again(saved: Responses, batch: ScoredBatch) -> Advantages:
    """Advantages by the run's method and settings; ``batch`` is the step's record, or one with other scores."""
    from nemo_uecr.core.functions import compute

    with naming_file(saved.path):
        return compute(method_of_run(saved), batch)


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
    """Compute a saved batch's advantages again and compare, over the whole padded layout."""
    import torch

    from nemo_uecr.core.methods.base import LOSS_TENSORS

    saved = read_responses(path)
    if "advantage" not in saved.names:
        raise DataError(f"{path} has no saved advantages to compare with; expected a step saved by this version's run")
    again = compute_again(saved, scored_batch(saved)).loss_tensors()
    bitwise, difference = True, 0.0
    for name in LOSS_TENSORS & {*saved.names, *again}:
        before: Tensor | None = saved.padded(name) if name in saved.names else None
        now = again.get(name)
        if before is None or now is None or before.shape != now.shape or before.dtype != now.dtype:
            bitwise, difference = False, float("inf")
            continue
        bitwise &= torch.equal(before.contiguous().view(torch.uint8), now.contiguous().view(torch.uint8))
        distance = (before.double() - now.double()).abs() / before.double().abs().clamp_min(1.0)
        difference = max(difference, float(distance.nan_to_num(nan=float("inf")).max()))
    return Recomputed(saved.about.get("arithmetic") == arithmetic(), bitwise, difference)
