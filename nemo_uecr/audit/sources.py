"""Responses to score, from wherever they were kept: a run of `local`, an evaluation, or a JSONL file.

Each is read with the token ids that were sampled, where they were kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.data.problems import parse_row
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from nemo_uecr.config.schema import Config
    from nemo_uecr.evaluation.samples import Sample

#: Token ids of a prompt, given a tokenizer.
Encode = Callable[[Any], Sequence[int]]
#: What a field's type is called.
WORDS: dict[type, str] = {str: "a text", int: "a whole number"}


@dataclass(frozen=True)
class Rollout:
    """One response.

    Attributes:
        id: unique among everything that is scored together.
        checkpoint: training steps that the generating policy had behind it.
        benchmark: set of problems it belongs to.
        problem: its problem.
        sample: number among the responses to one prompt.
        group: the prompt of one checkpoint; responses of one group are compared.
        question: the problem's text, where it is known.
        answer: the reference answer, where it is known.
        response: text without special tokens.
        reward: verdict as 1 or 0; None where it was never verified.
        prompt: how its prompt becomes token ids.
        token_ids: what was sampled, the end token included; None where only the text was kept.
        truncated: whether generation ended at its limit; None: the last token says it.
    """

    id: str
    checkpoint: int
    benchmark: str
    problem: str
    sample: int
    group: str
    question: str | None
    answer: str | None
    response: str
    reward: float | None
    prompt: Encode
    token_ids: tuple[int, ...] | None
    truncated: bool | None


@dataclass(frozen=True)
class Source:
    """Where responses come from and which models they name.

    Attributes:
        rollouts: the responses.
        student_of: the model that generated the responses of a checkpoint; None where the source does not say.
        teacher: the teacher of the run; None where the source does not say.
        files: sources' files, whose hashes go into the plan.
    """

    rollouts: list[Rollout]
    student_of: Callable[[int], str] | None
    teacher: str | None
    files: list[Path]


def evaluated(sample: Sample, step: int, prompt: Encode) -> Rollout:
    """A sample of an evaluation after ``step`` training steps."""
    return Rollout(
        id=f"step {step}/{sample.benchmark}/{sample.problem}/{sample.sample}",
        checkpoint=step,
        benchmark=sample.benchmark,
        problem=sample.problem,
        sample=sample.sample,
        group=f"{step}/{sample.benchmark}/{sample.problem}",
        question=sample.question,
        answer=sample.answer,
        response=sample.response,
        reward=sample.reward,
        prompt=prompt,
        token_ids=None if sample.token_ids is None else tuple(sample.token_ids),
        truncated=sample.truncated,
    )


def step_of(name: str) -> int | None:
    """The step in ``step-000030`` or ``checkpoints/step_30/hf``; None where a name has none."""
    found = re.findall(r"step[-_](\d+)", name)
    return int(found[-1]) if found else None


def parse_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and content of each object of a JSONL file.

    Raises:
        DataError: naming file and line.
    """
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        yield place, parse_row(line, place)


def require(row: Mapping[str, Any], fields: Mapping[str, type], place: str) -> None:
    """Refuse a row that lacks a field, or has one of another type.

    Raises:
        DataError: naming place and field.
    """
    for name, kind in fields.items():
        value = row.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise DataError(f"{place}: {name!r} is {value!r}; expected {WORDS[kind]}")


def encode_question(question: str, problem: str, answer: str, config: Config) -> Encode:
    """The prompt as training made it: template and chat template of the run's configuration."""

    def encode(tokenizer: Any) -> Sequence[int]:
        from nemo_uecr.data.problems import Problem
        from nemo_uecr.local.prompts import encode_prompts

        return encode_prompts([Problem(problem, question, answer)], tokenizer, config.data)[0].token_ids

    return encode


def encode_text(text: str) -> Encode:
    """The prompt as it stands: the text that the model read, its special tokens written out."""
    return lambda tokenizer: list(tokenizer(text, add_special_tokens=False)["input_ids"])


def fixed(ids: Sequence[int]) -> Encode:
    """Token ids that are known."""
    return lambda _: ids
