"""At which weight of the teacher a wrong response overtakes a right one, on fixed rollouts, by checkpoint.

The teacher score is that of the checkpoint that generated the response, clipped at 5 nats. Conflicts and fully safe
groups over alpha in [0, 8], ten values of alpha below each checkpoint's first one with a tenth of its mixed groups
inverted, tie points, sign changes, intervals over problems.

  nemo-uecr audit alpha-sweep runs/demo/scores
"""

from __future__ import annotations

import argparse

from nemo_uecr.cli.audit import add_bootstrap_arguments, add_scores_argument, finish, require_audit_extras

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_scores_argument(parser, "alpha-sweep")
    add_bootstrap_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Audit."""
    require_audit_extras()
    from nemo_uecr.audit.alpha_sweep import alpha_sweep_audit
    from nemo_uecr.audit.rollouts import read_scores

    return finish(alpha_sweep_audit(read_scores(args.scores), replicates=args.replicates, seed=args.seed), args)
