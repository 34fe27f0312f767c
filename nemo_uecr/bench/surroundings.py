"""What a benchmark of rivals was measured on: the processor, and the version of everything that took part."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from nemo_uecr.data.reproducible import installed

__all__ = ["surroundings"]

PACKAGES = ("torch", "trl", "verl", "liger-kernel", "areal", "megatron-core", "triton", "transformers")


def surroundings() -> dict[str, str | None]:
    """Versions of what took part, and the processor; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "processor": _processor()}
    found |= {package: installed(package) for package in PACKAGES}
    found["nemo-rl"] = _commit(os.environ.get("NEMO_RL_SOURCE"))
    return found


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit(source: str | None) -> str | None:
    if not source:
        return None
    command = ["git", "-C", source, "describe", "--tags", "--always"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
