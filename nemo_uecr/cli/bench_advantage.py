"""Time and memory of the UECR advantage, beside the plain padded form. One thread, one process a case.

python -m nemo_uecr.cli.bench_advantage --json advantage.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from nemo_uecr.cli.bench_child import output_of
from nemo_uecr.cli.common import write_json
from nemo_uecr.errors import UecrError

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
    write_json(args.json, result)
    return 0


def _case(case: str, args: argparse.Namespace) -> dict[str, float]:
    numbers = [str(number) for number in (args.responses, args.tokens, args.mean_length, args.repeats)]
    printed = output_of("nemo_uecr.bench.advantage", [case, *numbers], threads=1, failed=f"the case {case!r} failed: ")
    figures: dict[str, float] = json.loads(printed)
    return figures


def _versions() -> dict[str, str | None]:
    import platform

    from nemo_uecr.data.reproducible import installed

    return {"python": platform.python_version(), "torch": installed("torch")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    sys.exit(run(parser.parse_intermixed_args()))
