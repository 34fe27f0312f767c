"""A plan as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nemo_uecr.plan.records import GIB, Item, Phase, Plan, RankLine

__all__ = ["plan_text", "side_by_side"]

MEBI = 2**20
LAYOUT_LINES = 16


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
