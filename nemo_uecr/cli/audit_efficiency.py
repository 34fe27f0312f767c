"""What a run costs, and what the teacher's scoring adds to GRPO.

nemo-uecr audit efficiency runs/demo --baseline runs/grpo
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.audit import finish, require_audit_extras
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from nemo_uecr.report.run_folder import RunFolder

log = logging.getLogger(__name__)

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="run folder")
    parser.add_argument("--baseline", type=Path, metavar="RUN", help="run of method grpo to compare with")
    parser.add_argument("--out", type=Path, metavar="OUT", help="output folder (default: RUN/audits/efficiency)")


def run(args: argparse.Namespace) -> int:
    """Audit."""
    require_audit_extras()
    from nemo_uecr.audit.efficiency import Run, efficiency_audit
    from nemo_uecr.report.run_folder import read_runs

    paths = [args.run] if args.baseline is None else [args.run, args.baseline]
    found = read_runs(paths)
    for each in found:
        for note in _left_out(each):
            log.warning("%s: %s", each.path, note)
        if not each.steps:
            raise DataError(f"{each.path} has no step; expected the metrics of a run that has trained")
    if args.baseline is not None and found[1].method != "grpo":
        raise DataError(f"{args.baseline} is a run of {found[1].method}; expected method grpo, which scores no teacher")
    runs = [Run(each.label, each.method, each.steps, _left_out(each)) for each in found]
    return finish(efficiency_audit(runs, None if args.baseline is None else runs[1].label), args)


def _left_out(found: RunFolder) -> tuple[str, ...]:
    return tuple(note for note in found.notes if "metrics.jsonl" in note)
