r"""PUU's signal in pseudo-groups of eight and four, against a fixed base model, by checkpoint.

SCORES has 12 responses (or a multiple) to each problem, scored with the base model as an anchor:

  nemo-uecr score runs/demo --anchor base=demo:student --out runs/demo/scores
  nemo-uecr audit group-signal runs/demo/scores
"""

from __future__ import annotations

import argparse

from nemo_uecr.cli.audit import add_bootstrap_arguments, add_scores_argument, finish, require_audit_extras
from nemo_uecr.cli.ranges import whole_from

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_scores_argument(parser, "group-signal")
    add_bootstrap_arguments(parser)
    parser.add_argument("--anchor", default="base", metavar="NAME", help="the fixed anchor (%(default)s)")
    parser.add_argument(
        "--sizes", type=whole_from(2), nargs="+", default=[8, 4], metavar="N", help="sizes of the pseudo-groups (8 4)"
    )
    parser.add_argument(
        "--integer-verdicts", action="store_true", help="judge anew by the boxed integer, as the paper does on AMC"
    )


def run(args: argparse.Namespace) -> int:
    """Audit."""
    require_audit_extras()
    from nemo_uecr.audit.group_signal import group_signal_audit
    from nemo_uecr.audit.rollouts import read_scores

    audit = group_signal_audit(
        read_scores(args.scores),
        anchor=args.anchor,
        sizes=args.sizes,
        integer_verdicts=args.integer_verdicts,
        replicates=args.replicates,
        seed=args.seed,
    )
    return finish(audit, args)
