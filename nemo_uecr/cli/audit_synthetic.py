"""Write made scores or runs of the paper's sizes, to try an audit or to time it. They say nothing about any model.

nemo-uecr audit synthetic alpha-sweep made/alpha-sweep
nemo-uecr audit alpha-sweep made/alpha-sweep

nemo-uecr audit synthetic batch made/run
nemo-uecr audit batch made/run

nemo-uecr audit synthetic efficiency made/two
nemo-uecr audit efficiency made/two/uecr --baseline made/two/grpo

Those of localization have texts with right and wrong steps for the demo's judge, and answer.json with the gaps that the
audit must find at rho=.5 tau_delta=1 tau_entropy=1; docs/audits-localization.md has the commands. A made run holds what
these two audits read, and answer.json with the totals and overheads that they must find.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from nemo_uecr.cli.extras import require_extra
from nemo_uecr.cli.ranges import whole_between
from nemo_uecr.errors import DataError

__all__ = ["add_arguments", "run"]


#: Audits that read a run.
RUNS = ("batch", "efficiency")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    names = ["signal", "token-credit", "group-signal", "alpha-sweep", "localization", "batch", "efficiency"]
    parser.add_argument("audit", choices=names, help="whose sizes: checkpoints, problems, samples")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the scores, the run or the two runs")
    parser.add_argument(
        "--tokens",
        type=whole_between(2, 10**6),
        metavar="N",
        help="mean tokens a response (8980 for token-credit and runs, else 64)",
    )
    parser.add_argument("--seed", type=whole_between(0, 2**32 - 1), default=0, help="of everything (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Make."""
    require_extra("data")
    if args.out.exists():
        raise DataError(f"{args.out} exists; expected a new folder")
    if args.audit == "localization":
        _make_steps(args)
    elif args.audit in RUNS:
        _make_runs(args)
    else:
        _make(args)
    sys.stdout.write(f"{'made' if args.audit in RUNS else 'scores'}: {args.out}\n")
    return 0


def _make(args: argparse.Namespace) -> None:
    from nemo_uecr.audit.synthetic import PAPER, make_scores

    size = PAPER[args.audit]
    make_scores(args.out, size if args.tokens is None else replace(size, tokens=args.tokens), seed=args.seed)


def _make_steps(args: argparse.Namespace) -> None:
    require_extra("local")
    from nemo_uecr.audit.synthetic_steps import PAPER_STEPS, make_step_scores
    from nemo_uecr.demo.tokenizer import build_tokenizer

    if args.tokens is not None:
        raise DataError(f"--tokens {args.tokens}: the steps of localization have their own length; drop it")
    make_step_scores(args.out, PAPER_STEPS, build_tokenizer(), seed=args.seed)


def _make_runs(args: argparse.Namespace) -> None:
    from nemo_uecr.audit.synthetic_run import PAPER_RUN, make_run, make_runs

    size = PAPER_RUN
    if args.tokens is not None:  # the limit keeps its distance from the mean
        size = replace(size, tokens=args.tokens, limit=-(-size.limit * args.tokens // size.tokens))
    if args.audit == "batch":
        make_run(args.out, size, method="uecr", batches=True, seed=args.seed)
        return
    make_runs(args.out, size, seed=args.seed)
