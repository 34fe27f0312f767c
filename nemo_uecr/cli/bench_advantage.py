"""Time and memory of the UECR advantage, beside the plain padded form. One thread, one process a case.

nemo-uecr bench advantage --json advantage.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from nemo_uecr.data.atomic import replace_file
from nemo_uecr.errors import DataError, UecrError

__all__ = ["add_arguments", "run"]

CASES = ("blocked", "plain")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--responses", type=int, default=1008, help="B (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=16384, help="T, padded (default: %(default)s)")
    parser.add_argument("--mean-length", type=int, default=5400, help="mean response length (default: %(default)s)")
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs a case; the least counts (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")


def run(args: argparse.Namespace) -> int:
    """Measure."""
    if args.responses < 8 or args.responses % 8 or min(args.tokens, args.mean_length, args.repeats) < 1:
        raise UecrError("--responses must be a multiple of 8 and the other numbers at least 1")
    found = {case: _case(case, args) for case in CASES}
    ours, plain = found["blocked"], found["plain"]
    result = {
        "shape": [args.responses, args.tokens],
        "mean_length": ours["mean_length"],
        "cases": found,
        "ratios": {
            "plain_cpu": plain["cpu_s"] / ours["cpu_s"],
            "plain_memory": plain["peak_extra_mb"] / ours["peak_extra_mb"] if ours["peak_extra_mb"] else None,
        },
        "versions": _versions(),
    }
    sys.stdout.write(
        f"[{args.responses} x {args.tokens}] advantages, mean length {ours['mean_length']:.0f}, one thread\n"
    )
    for case, figures in found.items():
        sys.stdout.write(
            f"{case:<8} {figures['cpu_s']:.3f} s CPU  {figures['wall_s']:.3f} s wall  "
            f"{figures['peak_extra_mb']:.0f} MiB extra ({figures['peak_extra_per_output']:.2f} x output)\n"
        )
    if args.json is not None:
        try:
            replace_file(args.json, (json.dumps(result, indent=1) + "\n").encode())
        except OSError as error:
            raise DataError(f"cannot write {args.json}: {error.strerror}") from error
    return 0


def _case(case: str, args: argparse.Namespace) -> dict[str, float]:
    numbers = [str(number) for number in (args.responses, args.tokens, args.mean_length, args.repeats)]
    done = subprocess.run(
        [sys.executable, "-m", "nemo_uecr.bench.advantage", case, *numbers],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UecrError(f"the case {case!r} failed: {last}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _versions() -> dict[str, str | None]:
    import platform

    from nemo_uecr.data.versions import installed

    return {"python": platform.python_version(), "torch": installed("torch")}
