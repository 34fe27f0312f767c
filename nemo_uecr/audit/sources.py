"""Responses to score: from a run, an evaluation, a table of responses, or a JSONL file."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_uecr.config.load import read_written, written_config
from nemo_uecr.config.schema import TeacherConfig
from nemo_uecr.data.problems import checked_lines
from nemo_uecr.door import is_run
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.samples import SETTINGS, evaluations_of, finished
from nemo_uecr.files import read_object
from nemo_uecr.generation.trained import check_trained
from nemo_uecr.ranges import Range
from nemo_uecr.responses.table import read_responses
from nemo_uecr.verifier.pool import check_response

#: Token ids of a prompt, given a tokenizer.
Encode = Callable[[Any], Sequence[int]]


@dataclass(frozen=True)
class Rollout:
    """One response to score."""

    id: str  # unique among the responses scored together
    checkpoint: int  # training step of the policy that generated it
    benchmark: str | None
    problem: str
    sample: int  # number among the responses to one prompt
    group: str  # one prompt at one checkpoint; responses of a group are compared
    question: str | None
    asked: str | None  # equal for problems that are one observation; None: by their prompts
    answer: str | None
    response: str  # without special tokens
    correct: bool | None  # None if not verified
    prompt: Encode
    token_ids: tuple[int, ...] | None  # with the end token; None if only the text was kept
    sampled: tuple[bool, ...] | None  # which of them the policy sampled; None: all
    truncated: bool | None  # generation ended at its limit; None: derived from the last token


@dataclass(frozen=True)
class RolloutSource:
    """Responses with the models that generated and guided them, if the source names them."""

    rollouts: list[Rollout]
    student_of: Callable[[int], str] | None  # the model that generated the responses of a checkpoint
    teacher: str | None
    files: list[Path]  # whose hashes go into the plan


def _step_of(name: str) -> int | None:
    """The step in ``step-000030`` or ``checkpoints/step_30/hf``; None if there is none."""
    steps = re.findall(r"step[-_](\d+)", name)
    return int(steps[-1]) if steps else None


# Tables of responses


def _known(ids: Sequence[int], _tokenizer: object) -> Sequence[int]:
    return ids


def table_source(path: Path, *, step: int | None) -> RolloutSource:
    """Responses of a table; those of no known checkpoint are of the policy after ``step`` steps."""
    table = read_responses(path)
    names = ("benchmark", "problem", "sample", "question", "answer", "response", "correct", "truncated")
    columns = {name: table.column(name) for name in (*names, "id", "checkpoint", "group", "asked")}
    lists = [table.column(name) for name in ("prompt_ids", "token_ids", "sampled")]
    rollouts = []
    for row, (prompt, ids, sampled) in enumerate(zip(*lists, strict=True)):
        own = {name: values[row] for name, values in columns.items()}
        if (known := own["checkpoint"]) is None:
            if step is None:
                raise DataError(f"{path} does not say how long its policy had trained; give it as STEP={path}")
            own["checkpoint"], own["id"] = step, f"step {step}, {own['id']}"
        elif step not in (None, known):
            raise DataError(f"{path} has responses of step {known}, not {step}; leave out {step}=")
        own["group"] = f"{own['checkpoint']}/{own['group']}"
        rollouts.append(Rollout(**own, prompt=partial(_known, prompt), token_ids=tuple(ids), sampled=tuple(sampled)))
    run = path.resolve().parent.parent
    student_of, teacher = _models_of(run) if is_run(run) else (None, None)
    return RolloutSource(rollouts, student_of, teacher, [path])


def run_source(run: Path, *, steps: frozenset[int] | None) -> RolloutSource:
    """Responses of a run's evaluations, at ``steps`` or at all."""
    files = [path for path in evaluations_of(run) if steps is None or _step_of(path.stem) in steps]
    if not files:
        asked = "" if steps is None else f" of step {', '.join(map(str, sorted(steps)))}"
        raise DataError(f"{run} has no evaluations{asked}; expected {run / 'evaluations'}/step-*.parquet")
    rollouts = [rollout for path in files for rollout in table_source(path, step=None).rollouts]
    return RolloutSource(rollouts, *_models_of(run), files)


def _models_of(run: Path) -> tuple[Callable[[int], str] | None, str | None]:
    """The student of each checkpoint of a run, where they are Hugging Face folders, and its teacher if it is one."""
    if isinstance(section := read_written(run / "config.yaml").get("uecr"), Mapping):  # inside NeMo-RL, by Megatron
        return None, (section.get("teacher") or {}).get("model_name")
    config = written_config(run / "config.yaml")

    def student_of(step: int) -> str:
        if step == 0:
            return config.student.model_name
        path = run / "checkpoints" / f"step-{step:06d}"
        if not path.is_dir():
            raise DataError(
                f"{path} was not kept (checkpoint.keep_last={config.checkpoint.keep_last}), so the responses of this "
                "policy cannot be scored; choose other --steps, or keep more checkpoints in the next run"
            )
        check_trained(path)
        return str(path)

    return student_of, config.teacher.model_name if isinstance(config.teacher, TeacherConfig) else None


def evaluation_source(folder: Path, *, step: int | None) -> RolloutSource:
    """Responses of one model's folder of `nemo-uecr evaluate`; the default step is the one in the model's name."""
    model = str(read_object(folder / SETTINGS)["model"]["name"])
    checkpoint = _step_of(model) if step is None else step
    if checkpoint is None:
        raise DataError(
            f"{folder} evaluates {model!r}, whose name has no step; give it as STEP={folder}, 0 if untrained"
        )
    return replace(table_source(finished(folder), step=checkpoint), student_of=lambda _: model, teacher=None)


# A JSONL file

#: Stored as int32.
TokenId = Annotated[int, Range(0, 2**31 - 1)]
Ids = Annotated[tuple[TokenId, ...], Field(min_length=1)]


class _Row(BaseModel):
    """A line of a JSONL file; other keys are ignored."""

    model_config = ConfigDict(strict=True)

    problem: str
    response: str
    id: str | None = None
    checkpoint: int | None = Field(default=None, ge=0)
    benchmark: str = "file"
    sample: int | None = Field(default=None, ge=0)
    group: str | None = None
    question: str | None = None
    answer: str | None = None
    reward: Annotated[float, Field(ge=0, le=1, multiple_of=1)] | None = None
    prompt: str | None = None
    prompt_ids: Ids | None = None
    token_ids: Ids | None = None
    sampled: tuple[bool, ...] | None = None
    truncated: bool | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.prompt is None and self.prompt_ids is None:
            raise ValueError("expected 'prompt' (the model's whole input text) or 'prompt_ids'")
        if self.token_ids is None and self.truncated is None:
            raise ValueError("expected 'token_ids' or 'truncated', to know whether an end token follows")
        if self.sampled is not None and len(self.sampled) != len(self.token_ids or ()):
            raise ValueError("expected as many values in 'sampled' as in 'token_ids'")
        return self

    def encode(self, tokenizer: Any) -> Sequence[int]:
        return self.prompt_ids or list(tokenizer(self.prompt, add_special_tokens=False)["input_ids"])


def jsonl_source(path: Path, *, step: int | None) -> RolloutSource:
    """Responses of a JSONL file with ``problem``, ``response``, ``prompt`` (the input text) or ``prompt_ids``.

    Each row needs ``checkpoint`` unless ``step`` is given. A row with ``answer`` and no ``reward`` is verified.
    """
    counts: Counter[Any] = Counter()
    rollouts = []
    for place, row in checked_lines(path, _Row):
        checkpoint = step if row.checkpoint is None else row.checkpoint
        if checkpoint is None:
            raise DataError(f"{place}: no 'checkpoint'; expected the policy's step in each row, or STEP=FILE")
        prompt = (checkpoint, row.benchmark, row.problem, row.group)
        own = row.model_dump(exclude={"checkpoint", "group", "prompt", "prompt_ids", "reward"})
        if row.sample is None:
            own["sample"] = counts[prompt]
        counts[prompt] += 1
        own["correct"] = None if row.reward is None else row.reward == 1.0
        if row.reward is None and row.answer is not None:
            own["correct"] = check_response(row.response, row.answer).reward == 1.0
        own["group"] = "/".join(
            [str(checkpoint), row.benchmark, row.problem, *([] if row.group is None else [row.group])]
        )
        own["id"] = row.id or f"step {own['group']}/{own['sample']}"
        rollouts.append(Rollout(**own, asked=None, checkpoint=checkpoint, prompt=row.encode))
    return RolloutSource(rollouts, None, None, [path])


# Sources on the command line


def source_of(text: str, *, steps: frozenset[int] | None) -> RolloutSource:
    """Responses of a run, an evaluation, a table or a JSONL file by its path; all but a run also as ``STEP=PATH``."""
    number, equals, name = text.partition("=")
    step, path = (int(number), Path(name)) if equals and number.isdecimal() else (None, Path(text))
    if is_run(path):
        if step is not None:
            raise DataError(f"{text}: a run has its own steps; leave out {step}=, and choose with --steps")
        return run_source(path, steps=steps)
    if (path / SETTINGS).is_file():
        return evaluation_source(path, step=step)
    if path.suffix == ".parquet":
        return table_source(path, step=step)
    if path.is_file():
        return jsonl_source(path, step=step)
    raise DataError(
        f"{path} is no run folder, evaluation folder, table of responses or JSONL file; expected responses to score"
    )


def students_of(
    sources: Sequence[RolloutSource], given: str | None, resolve: Callable[[str], str]
) -> Callable[[int], str]:
    """The model that generated the responses of a checkpoint: ``given`` with its step, or the sources' own."""
    if given is not None:
        try:
            given.format(step=0)
        except (KeyError, IndexError, ValueError):
            raise DataError(f"--student {given!r}: expected no braces but {{step}} or {{step:06d}}") from None
        return lambda step: resolve(given.format(step=step))
    by_step: dict[int, str] = {}
    for source in sources:
        if source.student_of is None:
            raise DataError("the source does not name the student; give --student MODEL, with {step} if it varies")
        for step in sorted({rollout.checkpoint for rollout in source.rollouts}):
            model = resolve(source.student_of(step))
            if os.path.realpath(by_step.setdefault(step, model)) != os.path.realpath(model):
                raise DataError(
                    f"the responses of step {step} come from two students, {by_step[step]} and {model}; score each "
                    "student's responses into its own folder"
                )
    return by_step.__getitem__
