"""Check this machine, and with CONFIG everything that the configuration names. One line a check: ok, warn or fail.

  nemo-uecr doctor
  nemo-uecr doctor examples/configs/uecr_qwen3_4b.yaml teacher.model_name=/models/teacher data.subset=null

Run it where the run will run: on a compute node, inside the container. Nothing is downloaded.
Exit code: 0 when nothing fails (warnings included), 1 when a check fails, 2 when the configuration cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.json_file import refuse_unwritable, write_json

if TYPE_CHECKING:
    from nemo_uecr.doctor.findings import Finding

__all__ = ["add_arguments", "run"]

RAY_PORT = 9900
"""The Ray head's port in slurm/*.sbatch."""

FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", help="YAML configuration file (default: the machine alone)"
    )
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[], help="change one value")
    parser.add_argument(
        "--ray-port", type=int, default=RAY_PORT, metavar="NUMBER", help="port of the Ray head (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there as well")


def run(args: argparse.Namespace) -> int:
    """Print every finding as it is made."""
    from nemo_uecr.cli.sizes import sizes
    from nemo_uecr.cluster.ports import head_port
    from nemo_uecr.doctor.findings import worst
    from nemo_uecr.doctor.run import examine
    from nemo_uecr.doctor.subject import read_subject

    head_port(args.ray_port)
    if args.json is not None:
        refuse_unwritable(args.json, "--json")
    subject = None if args.config is None else read_subject(args.config, args.overrides)
    findings: list[Finding] = []
    for finding in examine(subject, ray_port=args.ray_port, sizes=sizes):
        findings.append(finding)
        sys.stdout.write(_line(finding))
        sys.stdout.flush()
    counts = {status: sum(one.status == status for one in findings) for status in ("ok", "warn", "fail")}
    sys.stdout.write(", ".join(f"{count} {status}" for status, count in counts.items()) + "\n")
    if args.json is not None:
        content = [asdict(one) for one in findings]
        write_json(args.json, {"format": "nemo_uecr.doctor/1", "counts": counts, "findings": content})
    return FAILED if worst(findings) == "fail" else 0


def _line(finding: Finding) -> str:
    remedy = f"\n      {'':<26}  -> {finding.remedy}" if finding.remedy else ""
    return f"{finding.status:<4}  {finding.check:<26}  {' '.join(finding.message.split())}{remedy}\n"
