"""Computes the advantages of saved steps again and compares them with those that the run saved."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.data.batch_settings import saved_settings
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check", "compare"]

#: Allowed elsewhere, relative to max(1, |A|).
TOLERANCE = 1e-6
SAVED = ("advantage", "advantage_opd")


@dataclass(frozen=True)
class Outcome:
    """How a saved step compares: whether every bit is required, and is there, and the largest difference."""

    same_arithmetic: bool
    bitwise: bool
    difference: float

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.bitwise if self.same_arithmetic else self.difference <= TOLERANCE


def check(path: Path) -> int:
    """Print one line a step; 1 when a step does not come out again, is gone or is not as the run wrote it."""
    if not path.exists():
        raise DataError(f"{path}: no such folder; expected a run folder, or a saved batch in safetensors form")
    steps = sorted((path / "batches").glob("step-*.safetensors")) if path.is_dir() else [path]
    if not steps:
        raise DataError(f"{path} has no batches/step-*.safetensors; expected a run with telemetry.save_batch_every > 0")
    from nemo_uecr.local.artifacts import batch_faults

    listed = {Path(name).name: fault for name, fault in batch_faults(steps[0].parent.parent).items()}
    gone = sorted(set(listed) - {step.name for step in steps}) if path.is_dir() else []
    for name in gone:
        sys.stdout.write(f"{name}: missing, the run's list of files has it: NOT REPRODUCED\n")
    failed = 0
    for step in steps:
        fault = listed.get(step.name) if step.parent.name == "batches" else None
        if fault is not None:
            failed += 1
            sys.stdout.write(f"{fault.removeprefix('batches/')}, by the run's list of files: NOT REPRODUCED\n")
            continue
        found = compare(step)
        failed += not found.holds
        word = "bit for bit" if found.bitwise else f"differs by {found.difference:.3g}"
        want = "the run's own arithmetic" if found.same_arithmetic else f"other arithmetic, {TOLERANCE:g} allowed"
        sys.stdout.write(f"{step.name}: {word} ({want}){'' if found.holds else ': NOT REPRODUCED'}\n")
    sys.stdout.write(f"{len(steps) - failed} of {len(steps) + len(gone)} saved steps reproduced\n")
    return 1 if failed or gone else 0


def compare(path: Path) -> Outcome:
    """Compute a saved step's advantages again.

    Raises:
        DataError: If the file has no advantages, or no method.
    """
    from nemo_uecr.core.methods import METHODS
    from nemo_uecr.data.batch_file import arithmetic, load_batch, naming_file, scored_batch

    saved = load_batch(path)
    if saved.method not in METHODS or "advantage" not in saved.tensors:
        raise DataError(f"{path} has no saved advantages to compare with; expected a step saved by this version's run")
    settings = saved_settings(saved, path)
    batch = scored_batch(saved, path)
    with naming_file(path):
        advantages = METHODS[saved.method].compute(batch, settings, detail=True).named_tensors()
    pairs = [(saved.tensors[name], advantages.get(name)) for name in SAVED if name in saved.tensors]
    return Outcome(
        same_arithmetic=saved.arithmetic == arithmetic(),
        bitwise=all(_same_bits(before, now) for before, now in pairs),
        difference=max(_difference(before, now) for before, now in pairs),
    )


def _same_bits(before: Tensor, now: Tensor | None) -> bool:
    import torch

    if now is None or before.shape != now.shape or before.dtype != now.dtype:
        return False
    return torch.equal(before.contiguous().view(torch.int32), now.contiguous().view(torch.int32))


def _difference(before: Tensor, now: Tensor | None) -> float:
    """Largest difference relative to max(1, |A|); infinite where the two cannot be compared."""
    if now is None or before.shape != now.shape or not before.numel():
        return float("inf")
    distance = (before.double() - now.double()).abs() / before.double().abs().clamp_min(1.0)
    return float(distance.nan_to_num(nan=float("inf")).max())
