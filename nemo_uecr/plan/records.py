"""What plan and doctor report: layout, phases with their memory and time, faults; findings; a plan as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = [
    "GIB", "Finding", "Item", "Phase", "Plan", "RankLine", "as_json", "fail", "ok", "plan_text", "side_by_side", "warn",
]  # fmt: skip

GIB, MEBI = 2**30, 2**20
LAYOUT_LINES = 16
"""Of a larger cluster the first and the last are printed."""


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


@dataclass(frozen=True)
class Finding:
    """What one check of the doctor found."""

    check: str
    status: Literal["ok", "warn", "fail"]
    message: str
    """What was found."""

    remedy: str
    """What to do; empty when it is ok."""


def ok(check: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(check, "ok", message, "")


def warn(check: str, message: str, remedy: str) -> Finding:
    """It may work."""
    return Finding(check, "warn", message, remedy)


def fail(check: str, message: str, remedy: str) -> Finding:
    """The run would stop here, or be wrong."""
    return Finding(check, "fail", message, remedy)


def plan_text(plan: Plan) -> str:
    """Everything about one run."""
    lines = [plan.title, plan.hardware, "", "batch", *_indented(plan.facts), "", "layout", *_layout(plan.layout), ""]
    lines += ["phases of a step: memory of each device, seconds"]
    for phase in plan.phases:
        lines += _phase(phase, plan.capacity)
    waiting = f"   {plan.waiting:.0%} of the GPUs' time waits in the rollout's tail" if plan.waiting else ""
    lines.append(f"  {'whole step':<18}{plan.seconds:>27,.1f} s{waiting}")
    lines += ["", "host memory of a node, besides device memory"]
    lines += [*_items(plan.host), f"  {'together':<28}{_size(sum(item.size for item in plan.host)):>12}"]
    lines += ["", f"disk: {_size(plan.checkpoint.size)} a checkpoint ({plan.checkpoint.how})"]
    lines += ["", "assumed", *_indented(plan.assumptions)]
    return "\n".join(lines) + "\n"


def side_by_side(columns: Sequence[tuple[str, Plan | str]]) -> str:
    """Several plans in columns; a text in place of a plan says why there is none."""
    plans = [(name, plan) for name, plan in columns if isinstance(plan, Plan)]
    lines = [f"{name}: cannot run: {plan}" for name, plan in columns if not isinstance(plan, Plan)]
    if plans:
        names = list(dict.fromkeys(phase.name for _, plan in plans for phase in plan.phases))
        rows = [["", *(name for name, _ in plans)]]
        for name in names:
            rows.append([name, *(_cell(plan, name) for _, plan in plans)])
        rows.append(["whole step", *(f"{plan.seconds:,.1f} s" for _, plan in plans)])
        rows.append(["host memory a node", *(_size(sum(item.size for item in plan.host)) for _, plan in plans)])
        rows.append(["fits", *(f"no, {len(plan.faults)} fault(s)" if plan.faults else "yes" for _, plan in plans)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
    return "\n".join(["teacher placements side by side", *_indented(lines)]) + "\n"


def _cell(plan: Plan, name: str) -> str:
    phase = next((phase for phase in plan.phases if phase.name == name), None)
    return "-" if phase is None else f"{phase.seconds:,.1f} s, {_size(phase.size)} on {phase.where}"


def _phase(phase: Phase, capacity: int | None) -> list[str]:
    share = "" if capacity is None else f" of {_size(capacity)}"
    head = f"  {phase.name:<18}{_size(phase.size) + share:>26} {phase.seconds:>10,.1f} s   {phase.how}"
    return [head, *(f"      {line.strip()}" for line in _items(phase.device))]


def _items(items: Iterable[Item]) -> list[str]:
    return [f"  {item.name:<28}{_size(item.size):>12}   {item.how}" for item in items]


def _layout(lines: Sequence[RankLine]) -> list[str]:
    shown = lines if len(lines) <= LAYOUT_LINES else (*lines[: LAYOUT_LINES - 1], lines[-1])
    written = [
        f"  node {line.node} device {line.device}: student {line.student} | teacher {line.teacher} | {line.rollout}"
        for line in shown
    ]
    if len(shown) < len(lines):
        written.insert(-1, f"  ... {len(lines) - len(shown)} more, all of them with --json ...")
    return written


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _size(size: int) -> str:
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / MEBI:,.2f} MiB"
