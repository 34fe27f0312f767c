"""What a check found: ok, warn or fail, with the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Status", "fail", "ok", "warn", "worst"]

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    check: str
    status: Status
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


def worst(findings: list[Finding]) -> Status:
    """The worst status; ok of nothing."""
    order: tuple[Status, ...] = ("fail", "warn", "ok")
    return next((status for status in order if any(one.status == status for one in findings)), "ok")
