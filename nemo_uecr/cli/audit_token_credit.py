r"""Where the teacher's token signals are large, how sure it is there, and what the weights do to a response's budget.

SCORES has responses of the initial student in groups, for example the batch of a run's first step:

  nemo-uecr score runs/demo --take batches --steps 1 --out runs/demo/scores-start
  nemo-uecr audit token-credit runs/demo/scores-start --run runs/demo

With the exact ranks of the tokens (`score --ranks`), their means and medians are given too.
"""

from __future__ import annotations

import argparse

from nemo_uecr.cli.audit import (
    add_bootstrap_arguments,
    add_scores_argument,
    add_settings_arguments,
    finish,
    require_audit_extras,
    settings_of,
)

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_scores_argument(parser, "token-credit")
    add_bootstrap_arguments(parser)
    parser.add_argument("--checkpoint", type=int, metavar="N", help="which one (default: the first)")
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Audit."""
    require_audit_extras()
    from nemo_uecr.audit.rollouts import read_scores
    from nemo_uecr.audit.token_credit import token_credit_audit

    settings = settings_of(args, ("alpha", "rho", "tau_delta", "tau_entropy"))
    audit = token_credit_audit(
        read_scores(args.scores),
        settings,
        checkpoint=args.checkpoint,
        replicates=args.replicates,
        seed=args.seed,
    )
    return finish(audit, args)
