r"""Score responses with a teacher and with the policies that they are compared to, for the audits.

ROLLOUTS is a run folder of `nemo-uecr train` (back end local), a folder of `nemo-uecr evaluate`, or a JSONL file. An
evaluation folder or a file may be given as STEP=PATH, STEP being the training steps of the policy that generated it.

  nemo-uecr score runs/demo --out runs/demo/scores
  nemo-uecr score runs/demo --take batches --steps 1 --out runs/demo/scores-start
  nemo-uecr score 0=evaluations/start 30=evaluations/step-30 --teacher T --anchor base=B --out scores
  nemo-uecr score rollouts.jsonl --teacher T --student 'checkpoints/step-{step:06d}' --out scores

A line of a file has "problem", "response", "prompt" (the whole text that the model read) or "prompt_ids", and
"token_ids" (sampled, the end token included) or "truncated"; and, as far as known, "checkpoint", "reward" or "answer"
(then it is verified), "question", "benchmark", "sample", "group", "id".

The student's scores are those of the checkpoint that generated the response; each --anchor adds a fixed policy.
OUT gets log-probabilities of every response token at temperature 1, the teacher's full-vocabulary entropy, and whether
the token is the teacher's first choice. Run the same command again after an interruption, or a longer one to add to
it: what is scored is kept. --ranks adds the exact rank of each token in a second pass.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING

from nemo_uecr.cli.extras import require_extra
from nemo_uecr.cli.ranges import whole_from
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nemo_uecr.audit.rollouts import Scores
    from nemo_uecr.audit.score import Scoring
    from nemo_uecr.audit.sources import Source

__all__ = ["add_arguments", "run"]


#: Digits of a step, and how a step may be written in a model's name: a width of two digits at most.
MOST_DIGITS, SPEC = 15, "0?[0-9]{0,2}d?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("rollouts", nargs="+", metavar="[STEP=]ROLLOUTS", help="run, evaluation folder or JSONL file")
    parser.add_argument("--teacher", metavar="MODEL", help="folder or hub name (a run folder's own teacher)")
    parser.add_argument(
        "--student", metavar="MODEL", help="{step} in it is the checkpoint (a run's checkpoints, an evaluation's model)"
    )
    parser.add_argument(
        "--anchor", action="append", default=[], metavar="NAME=MODEL", help="a further, fixed policy; may be repeated"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="OUT", help="folder of the scores")
    parser.add_argument(
        "--take", choices=["evaluations", "batches"], default="evaluations", help="what of a run (%(default)s)"
    )
    parser.add_argument("--steps", metavar="N,N,...", help="evaluations or batches of these steps of a run (all)")
    parser.add_argument(
        "--max-length",
        type=whole_from(1),
        metavar="N",
        help="tokens of prompt and response; longer ones keep their head (all)",
    )
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="of the models (%(default)s)"
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: %(default)s")
    parser.add_argument(
        "--batch", type=whole_from(1), default=16, metavar="N", help="responses of one forward pass (%(default)s)"
    )
    parser.add_argument(
        "--part", type=whole_from(1), default=512, metavar="N", help="responses written at once (%(default)s)"
    )
    parser.add_argument("--ranks", action="store_true", help="also the exact rank of every token (a second pass)")


def run(args: argparse.Namespace) -> int:
    """Score."""
    for extra in ("local", "data"):
        require_extra(extra)
    from nemo_uecr.audit.score import score_rollouts

    sources = [_source(text, args) for text in args.rollouts]
    scoring = _scoring(args, sources)
    rollouts = [rollout for source in sources for rollout in source.rollouts]
    files = [path for source in sources for path in source.files]
    scores = score_rollouts(args.out, rollouts, files, scoring)
    if args.ranks:
        _rank(args, scoring)
    sys.stdout.write(_summary(scores, args.out))
    return 0


def _source(text: str, args: argparse.Namespace) -> Source:
    from nemo_uecr.audit.file_source import evaluation_source, jsonl_source
    from nemo_uecr.audit.run_source import is_run, run_source
    from nemo_uecr.evaluation.settings import SETTINGS

    number, equals, name = text.partition("=")
    step, path = (_step(number, text), Path(name)) if equals and number.isdecimal() else (None, Path(text))
    if is_run(path):
        if step is not None:
            raise DataError(f"{text}: a run folder knows its steps; expected it without {step}=. Choose with --steps")
        return run_source(path, take=args.take, steps=_steps(args.steps))
    if (path / SETTINGS).is_file():
        return evaluation_source(path, step=step)
    if path.is_file():
        return jsonl_source(path, step=step)
    raise DataError(f"{path} is no run folder, no evaluation folder and no file; expected responses to score")


def _steps(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise DataError(f"--steps {text!r}: expected whole numbers set off by commas, for example 0,10,20")
    return frozenset(_step(word.strip(), "--steps") for word in words)


def _step(digits: str, where: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise DataError(f"{where[:40]}: a step of {len(digits)} digits; expected at most {MOST_DIGITS}")
    return int(digits)


def _scoring(args: argparse.Namespace, sources: list[Source]) -> Scoring:
    import torch

    from nemo_uecr.audit.score import Scoring
    from nemo_uecr.demo.assets import resolve

    teachers = {source.teacher for source in sources}
    teacher = args.teacher or (teachers.pop() if len(teachers) == 1 else None)
    if teacher is None:
        raise DataError("no teacher is known from these rollouts; give --teacher MODEL")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise DataError("--device cuda, but torch sees no GPU; choose auto or cpu")
    cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    student_of = _student_of(args.student, sources)
    return Scoring(
        teacher=resolve(teacher),
        student_of=lambda step: resolve(student_of(step)),
        anchors={name: resolve(model) for name, model in map(_anchor, args.anchor)},
        dtype=args.dtype,
        device=torch.device("cuda" if cuda else "cpu"),
        max_length=args.max_length,
        batch=args.batch,
        part=args.part,
    )


def _anchor(text: str) -> tuple[str, str]:
    from nemo_uecr.audit.schema import STUDENT

    name, equals, model = text.partition("=")
    if not (equals and model and name.isidentifier()) or name == STUDENT:
        raise DataError(
            f"--anchor {text!r}: expected NAME=MODEL with a name other than {STUDENT}, for example base=MODEL"
        )
    return name, model


def _student_of(given: str | None, sources: list[Source]) -> Callable[[int], str]:
    if given is not None:
        _check_pattern(given)
        return lambda step: given.format(step=step)
    by_step: dict[int, Callable[[int], str]] = {}
    for source in sources:
        if source.student_of is None:
            raise DataError(
                "the rollouts do not say who generated them; give --student MODEL, {step} in it if it varies"
            )
        by_step |= {rollout.checkpoint: source.student_of for rollout in source.rollouts}
    return lambda step: by_step[step](step)


def _check_pattern(given: str) -> None:
    try:
        fields = [field for field in Formatter().parse(given) if field[1] is not None]
    except ValueError:
        fields = [("", None, None, None)]
    if any(name != "step" or kind or not re.fullmatch(SPEC, spec or "") for _, name, spec, kind in fields):
        raise DataError(f"--student {given!r}: expected no braces but {{step}} or {{step:06d}}")


def _rank(args: argparse.Namespace, scoring: Scoring) -> None:
    from nemo_uecr.audit.rank import rank_parts
    from nemo_uecr.local.models import load_model

    teacher = load_model(scoring.teacher, role="teacher", dtype=scoring.dtype, device=scoring.device, trained=False)
    rank_parts(args.out, teacher, batch=scoring.batch)


def _summary(scores: Scores, out: Path) -> str:
    found = scores.responses
    steps = ", ".join(map(str, found.checkpoints))
    return (
        f"{len(found.ids)} responses, {int(found.scored_B.sum())} tokens, checkpoints {steps}; "
        f"{int(found.truncated_B.sum())} truncated in generation, {int(found.cut_B.sum())} cut by --max-length, "
        f"{int(found.from_text_B.sum())} with token ids from text\nscores: {out}\n"
    )
