"""Checks of the plan against this machine: memory of the device and the host, disk, and the models' positions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

from nemo_uecr.files import existing
from nemo_uecr.plan.contents import GIB, Plan
from nemo_uecr.start.seen import Caution, required


def fits(plan: Plan) -> str:
    """The run can be divided over the devices, and each phase fits into their memory."""
    message = f"{plan.hardware}: {plan.fullest.name} takes the most, {plan.fullest.size / GIB:.1f} GiB"
    return required(not plan.faults, "; ".join(plan.faults) or message, "see nemo-uecr plan")


def host_memory(plan: Plan, *, on_gpu: bool) -> str:
    """The host's memory has room for what the run keeps there; without a GPU, that is everything."""
    needed, total = plan.host_bytes if on_gpu else plan.fullest.size, psutil.virtual_memory().total
    message = f"{total / GIB:.1f} GiB, the run needs {needed / GIB:.1f}"
    return required(needed <= total, message, "take smaller models, or nodes with more memory")


def disk(plan: Plan, folder: Path, checkpoints: int) -> str:
    """The run folder's disk has room for so many checkpoints."""
    free, each = shutil.disk_usage(existing(folder)).free, plan.checkpoint.size
    needed = f"{checkpoints} checkpoints of {each / GIB:.2f} GiB need {checkpoints * each / GIB:.1f}"
    remedy = f"free space, keep fewer checkpoints, or choose another place than {folder}"
    return required(free >= checkpoints * each, f"{free / GIB:.1f} GiB free, {needed}", remedy)


def positions(too_long: Callable[[int], list[str]], allowed: int) -> str | Caution:
    """Prompts of the ``allowed`` length and their responses fit the models' positions.

    A local run refuses only prompts that are really too long; ``too_long`` are the faults at a prompt of some tokens,
    of which the plan refuses those at any prompt.
    """
    if not (faults := too_long(allowed)):
        return f"prompts of up to {allowed} tokens fit the models' positions"
    remedy = "a local run refuses only prompts that are really too long; fine if there are none"
    return Caution("; ".join(faults), remedy)
