"""The command `score`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from nemo_uecr.cli.common import AtLeastOne
from nemo_uecr.errors import DataError, require_extra

if TYPE_CHECKING:
    from nemo_uecr.audit.sources import Source

__all__ = ["score"]

#: How a step may be written in a model's name.
STEP_FORMAT = "0?[0-9]{0,2}d?"


def score(
    *rollouts: str,
    out: Path,
    teacher: str | None = None,
    student: str | None = None,
    anchor: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    take: Literal["evaluations", "batches"] = "evaluations",
    steps: str | None = None,
    max_length: AtLeastOne | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    batch: AtLeastOne = 16,
    part: AtLeastOne = 512,
    ranks: bool = False,
) -> None:
    """Score responses with a teacher and with the policies that they are compared to, for the audits.

    ROLLOUTS is a run folder of `nemo-uecr train` (back end local), a folder of `nemo-uecr evaluate`, or a JSONL file.
    An evaluation folder or a file may be given as STEP=PATH, STEP being the training steps of the policy that
    generated it.

        nemo-uecr score runs/demo --out runs/demo/scores
        nemo-uecr score runs/demo --take batches --steps 1 --out runs/demo/scores-start
        nemo-uecr score 0=evaluations/start 30=evaluations/step-30 --teacher T --anchor base=B --out scores
        nemo-uecr score rollouts.jsonl --teacher T --student 'checkpoints/step-{step:06d}' --out scores

    A line of a file has "problem", "response", "prompt" (the whole text that the model read) or "prompt_ids", and
    "token_ids" (sampled, the end token included) or "truncated"; and, as far as known, "checkpoint", "reward" or
    "answer" (then it is verified), "question", "benchmark", "sample", "group", "id".

    OUT gets log-probabilities of every response token at temperature 1 under the teacher, the checkpoint that
    generated it and each anchor, the teacher's full-vocabulary entropy, and whether the token is the teacher's first
    choice. Run the same command again after an interruption, or a longer one to add to it: what is scored is kept.

    Args:
        rollouts: Run, evaluation folder or JSONL file, each as PATH or STEP=PATH.
        out: Folder of the scores.
        teacher: Folder or hub name (default: a run folder's own teacher).
        student: Model that generated the responses, {step} in it if it varies (default: a run's checkpoints, an
            evaluation's model).
        anchor: A further, fixed policy as NAME=MODEL; may be repeated.
        take: What of a run.
        steps: Evaluations or batches of these steps of a run: N,N,... (default: all).
        max_length: Tokens of prompt and response; longer ones keep their head (default: all).
        dtype: Of the models.
        batch: Responses of one forward pass.
        part: Responses written at once.
        ranks: Also the exact rank of every token, in a second pass.
    """
    require_extra("local", "data")
    import torch

    from nemo_uecr.audit.score import Scoring, rank_parts, score_rollouts
    from nemo_uecr.demo.assets import resolve
    from nemo_uecr.local.models import load_model

    chosen = _steps(steps)
    sources = [_source(text, take=take, steps=chosen) for text in rollouts]
    teachers = {source.teacher for source in sources}
    model = teacher or (teachers.pop() if len(teachers) == 1 else None)
    if model is None:
        raise DataError("no teacher is known from these rollouts; give --teacher MODEL")
    if device == "cuda" and not torch.cuda.is_available():
        raise DataError("--device cuda, but torch sees no GPU; choose auto or cpu")
    student_of = _student_of(student, sources)
    scoring = Scoring(
        teacher=resolve(model),
        student_of=lambda step: resolve(student_of(step)),
        anchors={name: resolve(path) for name, path in map(_anchor, anchor)},
        dtype=dtype,
        device=torch.device("cpu" if device == "cpu" or not torch.cuda.is_available() else "cuda"),
        max_length=max_length,
        batch=batch,
        part=part,
    )
    responses = [rollout for source in sources for rollout in source.rollouts]
    files = [path for source in sources for path in source.files]
    found = score_rollouts(out, responses, files, scoring).responses
    if ranks:
        scorer = load_model(scoring.teacher, role="teacher", dtype=dtype, device=scoring.device, trained=False)
        rank_parts(out, scorer, batch=batch)
    sys.stdout.write(
        f"{len(found.ids)} responses, {int(found.scored_B.sum())} tokens, "
        f"checkpoints {', '.join(map(str, found.checkpoints))}; "
        f"{int(found.truncated_B.sum())} truncated in generation, {int(found.cut_B.sum())} cut by --max-length, "
        f"{int(found.from_text_B.sum())} with token ids from text\nscores: {out}\n"
    )


def _source(text: str, *, take: str, steps: frozenset[int] | None) -> Source:
    from nemo_uecr.audit.sources import evaluation_source, is_run, jsonl_source, run_source
    from nemo_uecr.evaluation.settings import SETTINGS

    number, equals, name = text.partition("=")
    step, path = (int(number), Path(name)) if equals and number.isdecimal() else (None, Path(text))
    if is_run(path):
        if step is not None:
            raise DataError(f"{text}: a run folder knows its steps; expected it without {step}=. Choose with --steps")
        return run_source(path, take=take, steps=steps)
    if (path / SETTINGS).is_file():
        return evaluation_source(path, step=step)
    if path.is_file():
        return jsonl_source(path, step=step)
    raise DataError(f"{path} is no run folder, no evaluation folder and no file; expected responses to score")


def _steps(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    try:
        return frozenset(int(word) for word in text.split(","))
    except ValueError:
        raise DataError(f"--steps {text!r}: expected whole numbers set off by commas, for example 0,10,20") from None


def _anchor(text: str) -> tuple[str, str]:
    from nemo_uecr.audit.store import STUDENT

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
    if any(name != "step" or kind or not re.fullmatch(STEP_FORMAT, spec or "") for _, name, spec, kind in fields):
        raise DataError(f"--student {given!r}: expected no braces but {{step}} or {{step:06d}}")
