"""Responses to score: from a run of `local`, an evaluation, or a JSONL file."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_uecr.config.load import written_config
from nemo_uecr.config.schema import Config, TeacherConfig
from nemo_uecr.data.batch_file import load_batch, saved_texts
from nemo_uecr.data.problems import Problem, checked_lines
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.runner import SETTINGS
from nemo_uecr.evaluation.samples import SAMPLES, EvaluationSample, read_samples
from nemo_uecr.files import read_object
from nemo_uecr.generation.engines import ModelTokens
from nemo_uecr.generation.prompts import ChatSettings, prompt_of
from nemo_uecr.generation.trained import check_trained
from nemo_uecr.ranges import Range
from nemo_uecr.verifier.pool import check_response

#: Token ids of a prompt, given a tokenizer.
Encode = Callable[[Any], Sequence[int]]
Take = Literal["evaluations", "batches"]


@dataclass(frozen=True)
class Rollout:
    """One response."""

    id: str  # unique among the responses scored together
    checkpoint: int  # training step of the policy that generated it
    benchmark: str
    problem: str
    sample: int  # number among the responses to one prompt
    group: str  # one prompt at one checkpoint; responses of a group are compared
    question: str | None
    answer: str | None
    response: str  # without special tokens
    reward: float | None  # 1 or 0; None if not verified
    prompt: Encode
    token_ids: tuple[int, ...] | None  # as sampled, with the end token; None if only the text was kept
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


def _rollout(step: int, prompt: Encode, *, part: str | None = None, **row: Any) -> Rollout:
    """A response after ``step`` training steps; ``part`` distinguishes prompts of one problem."""
    group = "/".join([str(step), row["benchmark"], row["problem"], *([] if part is None else [part])])
    row["id"] = row.get("id") or f"step {group}/{row['sample']}"
    return Rollout(checkpoint=step, group=group, prompt=prompt, **row)


# A run


def run_source(run: Path, *, take: Take, steps: frozenset[int] | None) -> RolloutSource:
    """Responses of a run of `local`: of its evaluations or its saved training batches, at ``steps`` or at all."""
    config = written_config(run / "config.yaml")
    pattern = {"evaluations": "evaluations/step-*.jsonl", "batches": "batches/step-*.safetensors"}[take]
    files = [path for path in sorted(run.glob(pattern)) if steps is None or _step_of(path.stem) in steps]
    if not files:
        asked = "" if steps is None else f" of step {', '.join(map(str, sorted(steps)))}"
        raise DataError(f"{run} has no {take}{asked}; expected {run / pattern}")
    rollouts: list[Rollout] = []
    for path in files:
        number = _step_of(path.stem) or 0
        if take == "batches":
            rollouts += _batch_of_run(path, number - 1, config)  # the batch of step 1 precedes the first update
        else:
            samples = read_samples(path)
            rollouts += [_evaluated(each, number, _training_prompt(vars(each), config)) for each in samples]

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

    teacher = config.teacher.model_name if isinstance(config.teacher, TeacherConfig) else None
    return RolloutSource(rollouts, student_of, teacher, files)


def _batch_of_run(path: Path, step: int, config: Config) -> list[Rollout]:
    tensors = load_batch(path).tensors
    seen: Counter[int] = Counter()
    rollouts = []
    for row, text in enumerate(saved_texts(path)):
        prompt = int(tensors["group"][row])  # several prompts may have the same problem
        rollouts.append(
            _rollout(
                step,
                _training_prompt(text, config),
                part=f"prompt {prompt}",
                benchmark="batch",
                sample=seen[prompt],
                reward=float(text["verdict"] == "correct"),
                token_ids=tuple(tensors["token_ids"][row][tensors["mask"][row].bool()].tolist()),
                truncated=None,
                **{name: text[name] for name in ("problem", "question", "answer", "response")},
            )
        )
        seen[prompt] += 1
    return rollouts


def _problem(text: Mapping[str, Any]) -> Problem:
    return Problem(text["problem"], text["question"], "", context=tuple(text.get("context", ())))


def _training_prompt(text: Mapping[str, Any], config: Config) -> Encode:
    return lambda tokenizer: prompt_of(tokenizer, _problem(text), ChatSettings.of(config.data.model_dump()))


# An evaluation


def evaluation_source(folder: Path, *, step: int | None) -> RolloutSource:
    """Responses of one model's folder of `nemo-uecr evaluate`; the default step is the one in the model's name."""
    settings = read_object(folder / SETTINGS)
    model, chat = str(settings["model"]["name"]), ChatSettings(**settings["chat"])
    checkpoint = _step_of(model) if step is None else step
    if checkpoint is None:
        raise DataError(
            f"{folder} evaluates {model!r}, whose name has no step; give it as STEP={folder}, 0 if untrained"
        )

    def prompt(sample: EvaluationSample) -> Encode:
        return lambda tokenizer: ModelTokens(tokenizer, frozenset()).prompt(_problem(vars(sample)), chat)

    rollouts = [_evaluated(each, checkpoint, prompt(each)) for each in read_samples(folder / SAMPLES)]
    return RolloutSource(rollouts, lambda _: model, None, [folder / SAMPLES])


def _evaluated(sample: EvaluationSample, step: int, prompt: Encode) -> Rollout:
    kept = ("benchmark", "problem", "sample", "question", "answer", "response", "reward", "truncated")
    ids = None if sample.token_ids is None else tuple(sample.token_ids)
    return _rollout(step, prompt, token_ids=ids, **{name: getattr(sample, name) for name in kept})


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
    truncated: bool | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.prompt is None and self.prompt_ids is None:
            raise ValueError("expected 'prompt' (the model's whole input text) or 'prompt_ids'")
        if self.token_ids is None and self.truncated is None:
            raise ValueError("expected 'token_ids' or 'truncated', to know whether an end token follows")
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
        own = row.model_dump(exclude={"checkpoint", "group", "prompt", "prompt_ids"})
        if row.sample is None:
            own["sample"] = counts[prompt]
        counts[prompt] += 1
        if row.reward is None and row.answer is not None:
            own["reward"] = check_response(row.response, row.answer).reward
        rollouts.append(_rollout(checkpoint, row.encode, part=row.group, **own))
    return RolloutSource(rollouts, None, None, [path])


# Sources on the command line


def source_of(text: str, *, take: Take, steps: frozenset[int] | None) -> RolloutSource:
    """Responses of a run, an evaluation or a JSONL file by its path; the latter two also as ``STEP=PATH``."""
    number, equals, name = text.partition("=")
    step, path = (int(number), Path(name)) if equals and number.isdecimal() else (None, Path(text))
    if (path / "config.yaml").is_file() and (path / "provenance.json").is_file():
        if step is not None:
            raise DataError(f"{text}: a run has its own steps; leave out {step}=, and choose with --steps")
        return run_source(path, take=take, steps=steps)
    if (path / SETTINGS).is_file():
        return evaluation_source(path, step=step)
    if path.is_file():
        return jsonl_source(path, step=step)
    raise DataError(f"{path} is no run folder, evaluation folder or file; expected responses to score")


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
            raise DataError("a JSONL file does not name the student; give --student MODEL, with {step} if it varies")
        for step in sorted({rollout.checkpoint for rollout in source.rollouts}):
            model = resolve(source.student_of(step))
            if os.path.realpath(by_step.setdefault(step, model)) != os.path.realpath(model):
                raise DataError(
                    f"the responses of step {step} come from two students, {by_step[step]} and {model}; score each "
                    "student's responses into its own folder"
                )
    return by_step.__getitem__
