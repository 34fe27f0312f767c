r"""One checkpoint scored by several engines: how far log-probabilities and entropies are apart.

SCORES has responses that the teacher scored with transformers in float32; the same tokens are scored again:

  nemo-uecr score runs/demo --take batches --steps 1 --out runs/demo/scores-start
  nemo-uecr audit teacher runs/demo/scores-start

Engines: transformers (one response at a time), transformers-bf16, megatron (megatron-core over gloo, float32), vllm,
vllm-bf16 and vllm-fp8 (the last two need a GPU). One that cannot run here is named with the reason.
"""

from __future__ import annotations

import argparse

from nemo_uecr.cli.audit import add_scores_argument, finish, require_audit_extras
from nemo_uecr.cli.extras import require_extra
from nemo_uecr.cli.ranges import whole_from
from nemo_uecr.errors import DataError

__all__ = ["add_arguments", "run"]

ALL = ("transformers", "transformers-bf16", "megatron", "vllm", "vllm-bf16", "vllm-fp8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_scores_argument(parser, "teacher")
    parser.add_argument("--teacher", metavar="MODEL", help="where the teacher lies now (default: where it was scored)")
    parser.add_argument("--engines", nargs="+", default=list(ALL), metavar="ENGINE", help=f"of {', '.join(ALL)} (all)")
    parser.add_argument("--responses", type=whole_from(1), metavar="N", help="the first N responses (all)")


def run(args: argparse.Namespace) -> int:
    """Audit."""
    require_audit_extras()
    require_extra("local")
    from nemo_uecr.audit.rollouts import read_scores
    from nemo_uecr.audit.teacher import teacher_audit
    from nemo_uecr.audit.teacher_engines import engines_of
    from nemo_uecr.evaluation.settings import model_digest

    scores, engines = read_scores(args.scores), engines_of(args.engines)
    scored = scores.plan["teacher"]
    model = args.teacher or scored["name"]
    if model_digest(model) != scored.get("sha256"):
        raise DataError(
            f"the weights of {model} are not those of the scores; expected the same checkpoint. Give --teacher"
        )
    return finish(teacher_audit(scores, model, engines, responses=args.responses), args)
