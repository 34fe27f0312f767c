"""Batch facts of a run: prompts, trajectories, tokens and steps, and every fault in them.

Exit code 1 when there is a fault.

  nemo-uecr audit batch runs/demo
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.audit import finish, require_audit_extras
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_uecr.audit.batch_facts import Intended
    from nemo_uecr.config.schema import Config

__all__ = ["add_arguments", "intended_batch", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("run", metavar="RUN", type=Path, help="run folder")
    parser.add_argument("--out", type=Path, metavar="OUT", help="output folder (default: RUN/audits/batch)")


def run(args: argparse.Namespace) -> int:
    """Audit."""
    require_audit_extras()
    from nemo_uecr.audit.batch_facts import batch_audit, read_lines
    from nemo_uecr.config.written import written_config
    from nemo_uecr.report.run_folder import read_run

    found = read_run(args.run)
    lines = read_lines(args.run / "metrics.jsonl")
    config = written_config(args.run / "config.yaml")
    batches = [(batch.step, batch.tensors) for batch in found.batches]
    audit = batch_audit(lines, batches, intended_batch(config, [step for step, _ in batches]))
    finish(audit, args)
    return 1 if audit.numbers["faults"] else 0


def intended_batch(config: Config, saved_steps: Sequence[int]) -> Intended:
    """What the configuration asks for; the order of the problems where the data is on this machine."""
    from nemo_uecr.audit.batch_facts import Intended
    from nemo_uecr.data.order import step_indices
    from nemo_uecr.data.prepared import training_file
    from nemo_uecr.data.problems import load_problems
    from nemo_uecr.demo.assets import locate

    rollout, data = config.rollout, config.data
    names, order = None, None
    try:
        path = training_file(Path(locate(data.train)), "data.train")
        problems = load_problems(path, question_key=data.question_key, answer_key=data.answer_key, id_key=data.id_key)
        names = [problem.id for problem in problems]
    except (DataError, OSError):
        pass  # unpacked elsewhere: the facts that need no data are still checked
    if names is not None:
        shape = {"problems": len(names), "per_step": rollout.prompts_per_step, "seed": config.run.seed}
        order = {
            step: [names[index] for index in step_indices(**shape, step=step, shuffle=data.shuffle)]
            for step in saved_steps
        }
    return Intended(
        prompts=rollout.prompts_per_step,
        responses=rollout.responses_per_prompt,
        minibatch=config.train.minibatch_responses,
        overlong_filter=rollout.overlong_filter,
        problems=None if names is None else len(names),
        order=order,
        steps=config.train.steps,
        save_every=config.telemetry.save_batch_every,
    )
