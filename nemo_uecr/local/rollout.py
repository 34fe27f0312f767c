"""One step's responses: how they are drawn, what the rewards read of them, and the texts that are saved.

Every random stream is a function of its seed, so a resumed run draws what it would have drawn.

Shape legend: B = responses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from nemo_uecr.config.schema import Config
from nemo_uecr.core.methods import Advantages, Method
from nemo_uecr.errors import ScoreError
from nemo_uecr.generation.decode import NOT_FINITE, decode
from nemo_uecr.generation.engines import Decoding, ModelTokens
from nemo_uecr.generation.prompts import turns_before
from nemo_uecr.local.sequences import Prompt, Response, Sequences, TeacherInputs
from nemo_uecr.local.token_model import TokenModel
from nemo_uecr.responses.table import REWARD
from nemo_uecr.steps.draws import step_indices
from nemo_uecr.steps.step_record import StepRecord, sample_ids
from nemo_uecr.verifier.rewards import Outcome, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Sampler(Protocol):
    """One response for each prompt, its draws fixed by its seed; ``limits`` as those of `decode`."""

    def __call__(
        self, prompts: Sequence[Prompt], seeds: Sequence[int], decoding: Decoding, limits: Sequence[int] | None = None
    ) -> list[Response]:
        """Draw them."""


def draw(
    model: TokenModel,
    prompts: Sequence[Prompt],
    seeds: Sequence[int],
    decoding: Decoding,
    limits: Sequence[int] | None = None,
    *,
    microbatch: int,
) -> list[Response]:
    """What a `Sampler` returns; ``microbatch`` are sampled at once."""
    responses: list[Response] = []
    for start in range(0, len(prompts), microbatch):
        rows = slice(start, start + microbatch)
        with model.forward_context(keep_casts=True):
            chunk = [prompt.token_ids for prompt in prompts[rows]]
            drawn = decode(model.module, model.tokens, chunk, seeds[rows], decoding, limits=limits and limits[rows])
        for ids in drawn:
            finite = ids[-1] != NOT_FINITE
            if not finite:
                ids[-1] = min(model.tokens.end_ids)
            finished = model.tokens.finished(ids, decoding.stop)
            responses.append(Response(tuple(ids), not finished, model.tokens.text(ids), finite))
    return responses


def step_prompts(prompts: Sequence[Prompt], config: Config, step: int) -> list[Prompt]:
    """The prompts of a step's responses, a group's side by side: a function of step and seed."""
    rollout = config.rollout
    indices = step_indices(
        problems=len(prompts),
        per_step=rollout.prompts_per_step,
        step=step,
        seed=config.run.seed,
        shuffle=config.data.shuffle,
    )
    return [prompts[index] for index in indices for _ in range(rollout.responses_per_prompt)]


def check_drawn(responses: Sequence[Response], names: Sequence[str], model: TokenModel) -> None:
    """Refuse a response with a token that could not be drawn; ``names`` has each response's own."""
    for response, name in zip(responses, names, strict=True):
        if not response.finite:
            raise ScoreError(
                f"the {model.name} gives logits that are not finite while it answers ({name}) at token "
                f"{len(response.token_ids) - 1}; expected finite numbers. Check its weights, or lower "
                "train.learning_rate if training began well"
            )


def samples_of(step: int, sequences: Sequences, config: Config, tokens: ModelTokens) -> list[Sample]:
    """What the rewards read of each response; of several turns, the text is that of the last."""
    data, skip = config.data, config.rollout.skip_special_tokens
    whole = [tokens.whole_text(response.last_turn) for response in sequences.responses]
    names = sample_ids(step, [prompt.problem.id for prompt in sequences.prompts])
    return [
        Sample(
            id=name,
            prompt=prompt.problem.turn(data.prompt_template),
            text=tokens.text(response.last_turn) if skip else text,
            whole=text,
            token_ids=response.sampled_ids,
            answer=prompt.problem.answer,
            columns=prompt.problem.columns,
            dataset=data.train,
            thinking=tokens.opens_thought(prompt.token_ids + response.token_ids[: response.spans[-1][0]]),
            before=tuple(turns_before(data.system_prompt, prompt.problem.context)),
            skipped=tokens.special_inside(response.last_turn) if skip else (),
            turns=response.messages,
            episode=None if response.episode is None else response.episode.outcome,
        )
        for name, prompt, response, text in zip(names, sequences.prompts, sequences.responses, whole, strict=True)
    ]


@dataclass(frozen=True)
class Drawn:
    """Responses to a step's prompts, and the policy mu that sampled them."""

    sequences: Sequences
    policy: int  # training steps that it had taken
    logp_BT: Tensor | None = None  # log mu at T_r, scored at the draw; None: mu is the policy that the step updates


@dataclass(frozen=True)
class StepBatch:
    """One step's responses, how they share forward passes, and what was scored of them."""

    sequences: Sequences  # prompts and responses, the responses of a prompt side by side
    micro_rows: list[list[Tensor]]  # rows of each micro-batch, one list for each optimizer step
    outcomes: Sequence[Outcome]  # task rewards
    inputs: TeacherInputs | None  # each response's teacher, and what it reads; None when the method reads no teacher
    record: StepRecord

    def save(
        self,
        path: Path,
        method: Method,
        advantages: Advantages | None,
        *,
        tokenizer: PreTrainedTokenizerBase,
        teachers: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Write the step's table; ``teachers`` have their provenance."""
        rows = response_rows(self.sequences) | outcome_rows(self.outcomes)
        if self.inputs is not None:
            rows |= teacher_rows(self.inputs)
        self.record.save(path, method, advantages, rows=rows, tokenizer=tokenizer, teachers=teachers, prompts=False)


def response_rows(sequences: Sequences) -> dict[str, Any]:
    """What is known of responses once they are drawn, by column."""
    problems = [prompt.problem for prompt in sequences.prompts]
    return {
        "problem": [problem.id for problem in problems],
        "question": [problem.question for problem in problems],
        "context": [list(problem.context) for problem in problems],
        "asked": [
            problem.observation(played=response.episode is not None)
            for problem, response in zip(problems, sequences.responses, strict=True)
        ],
        "answer": [problem.answer for problem in problems],
        "prompt_ids": [prompt.token_ids for prompt in sequences.prompts],
        "response": [response.text for response in sequences.responses],
        "truncated": [response.truncated for response in sequences.responses],
    }


def outcome_rows(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the rewards add."""
    parts = dict.fromkeys(name for outcome in outcomes for name in outcome.parts)
    return {"verdict": [outcome.verdict.value for outcome in outcomes]} | {
        REWARD + name: [outcome.parts.get(name) for outcome in outcomes] for name in parts
    }


def teacher_rows(inputs: TeacherInputs) -> dict[str, Any]:
    """Each response's teacher, and hashes of the prompt that it read and of the response after it."""
    read = inputs.sequences
    return {
        "teacher": inputs.names,
        "teacher_prompt_sha256": [ids_sha256(prompt.token_ids) for prompt in read.prompts],
        "teacher_response_sha256": [ids_sha256(response.token_ids) for response in read.responses],
    }


def ids_sha256(token_ids: Sequence[int]) -> str:
    """sha256 of token ids, written in decimal with commas."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()
