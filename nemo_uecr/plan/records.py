"""What a plan is made of: layout lines, phases with their memory and time, and what is wrong with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["GIB", "Item", "Phase", "Plan", "RankLine", "as_json"]

GIB = 2**30


@dataclass(frozen=True)
class Item:
    """Something that occupies memory."""

    name: str
    size: int
    """Bytes."""

    how: str
    """The arithmetic in words."""


@dataclass(frozen=True)
class Phase:
    """A part of a step."""

    name: str

    where: str
    """The devices that work: "student GPUs", "teacher GPUs", "every GPU", "driver"."""

    device: tuple[Item, ...]
    """On each working device, on the fullest one where they differ."""

    seconds: float

    how: str
    """What the seconds are made of."""

    waiting: float = 0.0
    """Those of the seconds that the average device waits for the slowest."""

    @property
    def size(self) -> int:
        """Bytes on each working device."""
        return sum(item.size for item in self.device)


@dataclass(frozen=True)
class RankLine:
    """What one device holds."""

    node: int
    device: int
    student: str
    teacher: str
    rollout: str


@dataclass(frozen=True)
class Plan:
    """Layout, memory and time of one run."""

    title: str

    hardware: str
    """The device and its limits."""

    capacity: int | None
    """Bytes that a device offers; None where it is not known."""

    layout: tuple[RankLine, ...]
    phases: tuple[Phase, ...]

    host: tuple[Item, ...]
    """Host memory of the fullest node, bytes."""

    checkpoint: Item
    """Disk space of one checkpoint."""

    facts: tuple[str, ...]
    """Batch arithmetic, one sentence each."""

    assumptions: tuple[str, ...]

    faults: tuple[str, ...]
    """Why it cannot run, one sentence each; empty when it can."""

    mismatches: tuple[str, ...]
    """Those of the faults that no layout cures: lengths and vocabularies. Each says what does."""

    @property
    def misfits(self) -> bool:
        """Whether something does not fit into memory, which another layout may change."""
        return len(self.faults) > len(self.mismatches)

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def waiting(self) -> float:
        """Share of the devices' time in a step that waits for the slowest of them."""
        return sum(phase.waiting for phase in self.phases) / self.seconds

    @property
    def fullest(self) -> Phase:
        """The phase with the most memory on a device."""
        return max(self.phases, key=lambda phase: phase.size)


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values; sizes in bytes, times in seconds."""
    values = asdict(plan)
    for given, phase in zip(values["phases"], plan.phases, strict=True):
        given["size"] = phase.size
    return values | {"seconds": plan.seconds, "waiting": plan.waiting, "fits": not plan.faults}
