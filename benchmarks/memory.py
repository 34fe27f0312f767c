"""Resident memory of this process and its peak, as Linux tells them."""

from __future__ import annotations

import os
from pathlib import Path

CLEAR = Path("/proc/self/clear_refs")


def can_reset_peak() -> bool:
    """Whether this system lets a process set its peak back."""
    return os.access(CLEAR, os.W_OK)


def reset_peak() -> int:
    """Set the process's peak resident memory back to its present one, and return it (Linux); bytes."""
    CLEAR.write_text("5")
    return _status("VmRSS")


def peak_resident() -> int:
    """Peak resident memory since `reset_peak`; bytes."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status; expected Linux")
