"""Ragged batches, their scores by a float64 forward of one sequence at a time, and what one update of them does."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from nemo_uecr.config.schema import Config
from nemo_uecr.core.methods import Advantages, RunState
from nemo_uecr.data.problems import Problem
from nemo_uecr.local.rollout import StepBatch
from nemo_uecr.local.scores import score_policy
from nemo_uecr.local.sequences import Prompt, Response, Sequences
from nemo_uecr.local.token_model import TokenModel
from nemo_uecr.local.update import UpdateOutcome, build_optimizer, update
from nemo_uecr.steps.metrics import ratio_metrics
from nemo_uecr.steps.step_record import StepRecord
from tests.local import tiny

LENGTHS = (3, 7, 1, 5, 2, 6, 4, 4)
PROMPTS = (5, 2, 9, 3, 3, 4, 6, 1)
Inputs = tuple[StepBatch, Advantages]


def ragged(seed: int = 0, lengths: Sequence[int] = LENGTHS, prompts: Sequence[int] = PROMPTS) -> Sequences:
    """Random tokens: prompts and responses of different lengths."""
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(5, 250, (count,), generator=generator).tolist())

    return Sequences(
        [Prompt(Problem(str(row), "q", "a"), ids(count)) for row, count in enumerate(prompts)],
        [Response(ids(count), False, "") for count in lengths],
    )


def by_hand(
    model: TokenModel, sequences: Sequences, temperature: float, *, columns: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """From the model's own logits in float64, one row at a time, no padding.

    Returns:
        [B, T] log-probability at the temperature over the first ``columns``, entropy, and mass of the other columns,
        both at temperature 1; NaN beyond each response.
    """
    module = copy.deepcopy(model.module).double()
    shape = len(sequences.responses), sequences.width
    logp, entropy, dropped = (torch.full(shape, math.nan, dtype=torch.float64) for _ in range(3))
    for row, (prompt, response) in enumerate(zip(sequences.prompts, sequences.responses, strict=True)):
        ids = torch.tensor([prompt.token_ids + response.token_ids])
        with torch.no_grad():
            whole = module(input_ids=ids).logits[0, len(prompt.token_ids) - 1 : -1].double()
        logits = whole[:, :columns]
        chosen = torch.tensor(response.token_ids).unsqueeze(1)
        length = len(response.token_ids)
        logp[row, :length] = (logits / temperature).log_softmax(-1).gather(1, chosen)[:, 0]
        p = logits.softmax(-1)
        entropy[row, :length] = -(p * p.log()).sum(-1)
        dropped[row, :length] = 1.0 - whole.softmax(-1)[:, :columns].sum(-1)
    return logp, entropy, dropped


def worst(found: Tensor, expected: Tensor, mask_BT: Tensor) -> float:
    return float((found.double() - expected)[mask_BT].abs().max())


def inputs_for(
    model: TokenModel, config: Config, sequences: Sequences, *, seed: int = 1, reference: Tensor | None = None
) -> Inputs:
    """A scored batch with random advantages, scored on the update's own micro-batches."""
    train = config.train
    micro_rows = sequences.micro_rows(minibatch=train.minibatch_responses, microbatch=train.microbatch_responses)
    flat = [rows for part in micro_rows for rows in part]
    temperature = config.rollout.temperature
    generator, rows_B = torch.Generator().manual_seed(seed), torch.arange(len(sequences.responses))
    record = StepRecord(
        step=1,
        problems=rows_B.tolist(),
        task_reward_B=rows_B,
        group_B=rows_B,
        mask_BT=sequences.mask_BT,
        token_ids_BT=sequences.token_ids(),
        correct_B=rows_B >= 0,
        truncated_B=rows_B < 0,
        student=score_policy(model, sequences, flat, rollout_temperature=temperature, entropy=False),
        run=RunState(),
        reference_rollout_logp_BT=reference,
    )
    advantage_BT = torch.randn(sequences.mask_BT.shape, generator=generator) * sequences.mask_BT
    return StepBatch(sequences, micro_rows, (), None, record), Advantages(advantage_BT)


def config_of(*overrides: str) -> Config:
    every = (
        "rollout.prompts_per_step=2",
        "rollout.responses_per_prompt=4",
        "loss.reference_kl=0",
        "train.max_grad_norm=1000",
    )
    return tiny.configured(
        Path("unused"), "train.microbatch_responses=1", "train.minibatch_responses=8", *every, *overrides
    ).config


def measured(outcome: UpdateOutcome) -> dict[str, float]:
    ratios = outcome.ratio_N, outcome.before_N, outcome.first_ratio_N
    return ratio_metrics(*ratios, clip_low=0.2, clip_high=0.2, far=1e-5)


def gradients(model: TokenModel) -> Tensor:
    """What the last backward left, as one vector."""
    found = [parameter.grad for parameter in model.module.parameters()]
    return torch.cat([grad.flatten() for grad in found if grad is not None]).double()


def updated(model: TokenModel, inputs: Inputs, config: Config) -> tuple[UpdateOutcome, Tensor]:
    """Update a copy; returns the outcome and the gradient of its last optimizer step."""
    copied = replace(model, module=copy.deepcopy(model.module))
    outcome = update(copied, build_optimizer(copied, config), *inputs, config, steps_done=0)
    return outcome, gradients(copied)
