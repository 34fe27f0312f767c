"""Prompts and responses as token ids, and as the right-padded micro-batches that every forward pass reads.

Shape legend: B = responses, T = response tokens (padded), S = prompt and response tokens (padded), N = sampled tokens
of one micro-batch in a flat list, b = responses of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_uecr.config.schema import Config, DataConfig
from nemo_uecr.data.manifest import training_problems
from nemo_uecr.data.problems import Problem, problems_of
from nemo_uecr.errors import DataError
from nemo_uecr.generation.engines import Generation
from nemo_uecr.generation.environments import Episode
from nemo_uecr.generation.models import check_ids
from nemo_uecr.generation.prompts import ChatSettings, check_template, fitting_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from nemo_uecr.local.token_model import TokenModel


@dataclass(frozen=True)
class Prompt:
    """A problem with the token ids that the model reads."""

    problem: Problem
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Response(Generation):
    """A sampled response with the text of its sampled tokens, without special tokens."""

    text: str
    finite: bool = True  # False: the logits after its last token but one were not, and an end token stands for the last
    engine_logp: tuple[float, ...] = ()  # of the sampled tokens at temperature 1 by the engine, nats; empty: not told
    messages: tuple[Mapping[str, str], ...] = ()  # its turns and what was observed between them; empty: one turn
    episode: Episode | None = None  # its game; None where there is no environment


def encode_prompts(
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    benchmark: str = "",
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[Prompt]:
    """Encode every problem, training's or a benchmark's, through the chat template; without one as plain text.

    ``tools`` are the environment's.
    """
    encoded = fitting_prompts(tokenizer, problems, data, benchmark, tools)
    return [Prompt(problems[place], tuple(ids)) for place, ids in encoded.items()]


def encoded_problems(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    find: Callable[[str], str],
    tools: Sequence[Mapping[str, Any]] = (),
) -> tuple[list[Prompt], dict[str, list[Prompt]]]:
    """Prompts of the training problems and of each benchmark, with the environment's ``tools``.

    ``find`` makes a path of what a configuration names.
    """
    data = config.data
    check_template(tokenizer, ChatSettings.of(data.model_dump(), tools))
    read = {name: problems_of(data, find(path), f"evaluation.benchmarks.{name}")
            for name, path in config.evaluation.benchmarks.items()}  # fmt: skip
    benchmarks = {name: encode_prompts(problems, tokenizer, data, name, tools) for name, problems in read.items()}
    return encode_prompts(training_problems(data, find(data.train)), tokenizer, data, "", tools), benchmarks


def check_context(prompts: Sequence[Prompt], model: TokenModel, key: str, response: int) -> None:
    """Refuse token ids that the model does not have, and sequences longer than its context.

    ``key`` limits the ``response``.
    """
    check_ids((prompt.token_ids for prompt in prompts), model.vocabulary, model.tokenizer, f"the {model.name}")
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
    length = len(longest.token_ids)
    if model.context is not None and length + response > model.context.tokens:
        raise DataError(
            f"problem {longest.problem.id!r} has a prompt of {length} tokens, and with {key}={response} "
            f"a sequence of up to {length + response}; the {model.name} reads at most {model.context.tokens} "
            f"({model.context.limit}). Lower {key} or drop the long problems"
        )


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward pass."""

    ids_bS: Tensor  # right-padded prompt and response; no sampled token attends to the padding
    position_N: Tensor  # index into the flattened [b * S] features from which each sampled token is predicted
    target_N: Tensor  # the sampled tokens
    mask_bT: Tensor  # where each of them is in the [B, T] layout


@dataclass(frozen=True)
class Sequences:
    """A step's prompts and responses, aligned row by row."""

    prompts: Sequence[Prompt]
    responses: Sequence[Response]

    @cached_property
    def width(self) -> int:
        """T: tokens of the longest response."""
        return max(len(response.token_ids) for response in self.responses)

    def token_ids(self) -> Tensor:
        """[B, T] response token ids, 0 in the padding."""
        return pad_sequence(
            [torch.tensor(response.token_ids, dtype=torch.long) for response in self.responses], batch_first=True
        )

    @property
    def tokens(self) -> dict[str, Tensor]:
        """The token columns of a table of responses."""
        return {"token_ids": self.token_ids(), "sampled": self.mask_BT}

    @cached_property
    def mask_BT(self) -> Tensor:
        """True on sampled tokens."""
        mask_BT = torch.zeros((len(self.responses), self.width), dtype=torch.bool)
        for row, response in enumerate(self.responses):
            for start, end in response.spans:
                mask_BT[row, start:end] = True
        return mask_BT

    def no_scores(self) -> Tensor:
        """[B, T] of NaN, so that a careless reader of what was not sampled is caught."""
        return torch.full((len(self.responses), self.width), torch.nan)

    def ends_BT(self, end_ids: Collection[int]) -> Tensor:
        """True on the token that ends a response, or a turn of it, by one of these ids."""
        last_BT = self.mask_BT & ~self.mask_BT.roll(-1, dims=1)
        last_BT[:, -1] = self.mask_BT[:, -1]
        return last_BT & torch.isin(self.token_ids(), torch.tensor(sorted(end_ids)))

    def micro_rows(self, *, minibatch: int, microbatch: int) -> list[list[Tensor]]:
        """Rows of each micro-batch, one list for each optimizer step; scoring and update walk the same.

        Rows of similar length share a forward pass, so little of it is padding; the longest come first, so that what
        does not fit into memory fails at once.
        """
        pairs = zip(self.prompts, self.responses, strict=True)
        length_B = torch.tensor([len(prompt.token_ids) + len(response.token_ids) for prompt, response in pairs])
        minibatches = torch.split(torch.arange(len(length_B)), minibatch)
        longest_first = [rows[length_B[rows].argsort(descending=True, stable=True)] for rows in minibatches]
        return [list(torch.split(rows, microbatch)) for rows in longest_first]

    def micro_batch(self, rows: Tensor) -> MicroBatch:
        """The rows as one right-padded forward pass."""
        pairs = [(self.prompts[row], self.responses[row]) for row in rows.tolist()]
        ids = [torch.tensor(prompt.token_ids + response.token_ids) for prompt, response in pairs]
        ids_bS = pad_sequence(ids, batch_first=True)
        starts = [row * ids_bS.shape[1] + len(prompt.token_ids) - 1 for row, (prompt, _) in enumerate(pairs)]
        spans = [(starts[row], span) for row, (_, response) in enumerate(pairs) for span in response.spans]
        positions = [start + torch.arange(*span) for start, span in spans]
        target_N = torch.tensor([token for _, response in pairs for token in response.sampled_ids])
        return MicroBatch(ids_bS, torch.cat(positions), target_N, self.mask_BT[rows])


@dataclass(frozen=True)
class TeacherInputs:
    """The teachers' side of a step: which of them scores each row, and what it reads."""

    names: Sequence[str]
    sequences: Sequences
    student_ends: frozenset[int]

    @cached_property
    def ends_BT(self) -> Tensor:
        """True on the student's end tokens."""
        return self.sequences.ends_BT(self.student_ends)
