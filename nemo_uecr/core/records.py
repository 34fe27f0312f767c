"""The records that every back end hands to the mathematics and gets back.

Shape legend: B = responses in the batch, T = tokens (padded), N = tokens of all responses (packed).
Token fields are ``[B, T]``; in a packed batch they are ``[N]`` and ``offsets`` delimits the responses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from nemo_uecr.core.layout import Block, cut
from nemo_uecr.errors import ConfigError, ScoreError

#: Of indices and labels; torch has no arithmetic for its other integers.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
#: Of rewards: nor has it any for floats of 8 bits.
REWARD_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: Added to every group standard deviation (the paper's audits state the value).
EPSILON = 1e-6
#: R^T and the OPD advantage clip the gap to this many nats on both sides.
GAP_CLIP = 5.0

#: Beyond these, float32 products of settings and scores overflow.
LARGEST = 1e12
SMALLEST_SCALE = 1e-12
#: Integers up to here are exact as floating-point numbers.
LARGEST_INTEGER = 2**53

SCORE_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class ScoredBatch:
    """One step's responses with their rewards and token scores (docs/method.md, inputs of one step).

    Values of token fields where ``mask_BT`` is False are never read, NaN included.

    Attributes:
        task_reward_B: [B] verifier reward R^task.
        group_B: [B] integer prompt identity; groups may be ragged and in any order.
        mask_BT: [B, T] (packed: [N]) bool, the sampled response tokens; may have holes.
        old_logp_BT: [B, T] log pi_old(y_t) at temperature 1, nats, float32 or float64.
        teacher_logp_BT: [B, T] log pi_T(y_t) at temperature 1, nats.
        teacher_entropy_BT: [B, T] full-vocabulary teacher entropy +H at temperature 1, nats.
        initial_logp_BT: [B, T] log pi_0(y_t), the initial student at temperature 1, nats (``g_opd`` only).
        segments_BT: [B, T] integer turn label of each token (``atod`` only).
        offsets: [B + 1] token offsets of a packed batch; None when padded.
        sample_ids: names of the responses for error messages.
    """

    task_reward_B: Tensor
    group_B: Tensor
    mask_BT: Tensor
    old_logp_BT: Tensor
    teacher_logp_BT: Tensor | None = None
    teacher_entropy_BT: Tensor | None = None
    initial_logp_BT: Tensor | None = None
    segments_BT: Tensor | None = None
    offsets: Tensor | None = None
    sample_ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse shapes and types that no method could use."""
        _check_responses(self)
        _check_tokens(self)

    @property
    def responses(self) -> int:
        """Number of responses B."""
        return self.task_reward_B.shape[0]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """How the token tensors are walked over."""
        return cut(self.mask_BT, self.offsets)

    def name_of(self, row: int) -> str:
        """How an error message calls response ``row``."""
        return f"response {row}" if self.sample_ids is None else f"response {row} ({self.sample_ids[row]})"


@dataclass(frozen=True)
class Settings:
    """Scalars of a method; None means "not given", and a method that needs it says so.

    Attributes:
        alpha: weight of the teacher reward in R^U.
        rho: redistribution strength, 0 <= rho < 1.
        tau_delta: gap scale of the direction, nats, > 0.
        tau_entropy: entropy scale of the confidence, nats, > 0.
        std_floor: denominator becomes max(sigma, std_floor) + eps; 0 is the paper.
        sample_std: divide the variance by G - 1 instead of G.
        opd_coef: weight of the second surrogate of ``grpo_plus_opd``.
        step: completed training steps (``atod``'s schedule).
        seed: permutation seed (``shuffled_entropy``).
        parameters: numbers of one method's own, by the names in its line of the registry.
    """

    alpha: float | None = None
    rho: float | None = None
    tau_delta: float | None = None
    tau_entropy: float | None = None
    std_floor: float | None = None
    sample_std: bool | None = None
    opd_coef: float | None = None
    step: int | None = None
    seed: int | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values outside the paper's ranges."""
        for name in ("alpha", "rho", "tau_delta", "tau_entropy", "std_floor", "opd_coef"):
            value = getattr(self, name)
            if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
                raise ConfigError(f"{name} has {value.bit_length()} bits; expected a magnitude of at most {LARGEST:g}")
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"{name} is {value}; expected a finite number")
            if value is not None and abs(value) > LARGEST:
                raise ConfigError(f"{name} is {value}; expected a magnitude of at most {LARGEST:g}")
        if self.rho is not None and not 0.0 <= self.rho < 1.0:
            raise ConfigError(f"rho is {self.rho}; expected 0 <= rho < 1, so that every token weight stays positive")
        for name in ("tau_delta", "tau_entropy"):
            value = getattr(self, name)
            if value is not None and value < SMALLEST_SCALE:
                raise ConfigError(f"{name} is {value}; expected a positive number of nats, at least {SMALLEST_SCALE:g}")
        for name in ("std_floor", "step", "seed"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} is {value}; expected 0 or more")
        _check_exact(self)

    def need(self, name: str, method: str) -> float:
        """The value of ``name``; an error naming the key when it was not given."""
        value = getattr(self, name)
        if value is None:
            raise ConfigError(f"method {method} needs {name}, which was not given; set method.{name}")
        return float(value)

    def parameter(self, name: str, method: str) -> float:
        """The value of one of the method's own parameters; an error naming the key when it was not given."""
        if name not in self.parameters:
            raise ConfigError(f"method {method} needs parameters.{name}; set method.parameters.{name}")
        return float(self.parameters[name])

    def need_int(self, name: str, method: str) -> int:
        """Like `need`, for the integer settings."""
        return int(self.need(name, method))


@dataclass(frozen=True)
class Advantages:
    """What a method returns. All tensors are detached; None where the method has no such quantity.

    Token fields have the layout of the batch. Where the mask is False, ``advantage_BT`` is 0,
    ``weight_BT`` is 1, and the other token fields are 0.

    Attributes:
        advantage_BT: advantage of the (first) clipped surrogate.
        advantage_opd_BT: advantage of the second surrogate (``grpo_plus_opd``).
        weight_BT: token weight w (only with ``detail``).
        residual_BT: q (only with ``detail``).
        direction_BT: d (only with ``detail``).
        confidence_BT: c (only with ``detail``).
        centre_B: [B] the response mean mu^c that the projection subtracts.
        advantage_unified_B: [B] A^U.
        advantage_task_B: [B] A^task|U (methods without PUU: their task advantage).
        advantage_teacher_B: [B] A^T|U.
        teacher_reward_B: [B] R^T, nats.
        unified_std_B: [B] group standard deviation of the normalised reward, before floor and eps.
    """

    advantage_BT: Tensor
    advantage_opd_BT: Tensor | None = None
    weight_BT: Tensor | None = None
    residual_BT: Tensor | None = None
    direction_BT: Tensor | None = None
    confidence_BT: Tensor | None = None
    centre_B: Tensor | None = None
    advantage_unified_B: Tensor | None = None
    advantage_task_B: Tensor | None = None
    advantage_teacher_B: Tensor | None = None
    teacher_reward_B: Tensor | None = None
    unified_std_B: Tensor | None = None

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor that is present, by its public name (the keys of ``nemo-uecr replay``)."""
        return {
            name.removesuffix("_BT").removesuffix("_B"): tensor
            for name, tensor in vars(self).items()
            if tensor is not None
        }


def _check_exact(settings: Settings) -> None:
    for name in ("step", "seed"):
        value = getattr(settings, name)
        if value is not None and value > LARGEST_INTEGER:
            raise ConfigError(f"{name} has {len(str(value))} digits; expected at most {LARGEST_INTEGER} (2**53)")


def _check_responses(batch: ScoredBatch) -> None:
    if batch.task_reward_B.ndim != 1:
        raise ScoreError(f"task_reward has shape {list(batch.task_reward_B.shape)}; expected [B], one value a response")
    for name, tensor in (("task_reward", batch.task_reward_B), ("group", batch.group_B)):
        if tensor.ndim != 1 or tensor.shape[0] != batch.responses:
            raise ScoreError(
                f"{name} has shape {list(tensor.shape)}; expected [{batch.responses}], one value a response"
            )
    if batch.responses == 0:
        raise ScoreError("the batch has no responses; expected at least one group of two")
    if batch.group_B.dtype not in INTEGERS:
        raise ScoreError(f"group has dtype {batch.group_B.dtype}; expected integers (the prompt index)")
    if batch.task_reward_B.dtype not in REWARD_DTYPES:
        raise ScoreError(f"task_reward has dtype {batch.task_reward_B.dtype}; expected a float")
    unusable = (~batch.task_reward_B.isfinite()).nonzero()
    if unusable.numel():
        row = int(unusable[0])
        raise ScoreError(
            f"task_reward of {batch.name_of(row)} is {float(batch.task_reward_B[row])}; expected a finite number. "
            "One bad reward would spoil its whole group"
        )
    if batch.sample_ids is not None and len(batch.sample_ids) != batch.responses:
        raise ScoreError(f"{len(batch.sample_ids)} sample ids for {batch.responses} responses; expected one each")


def _check_tokens(batch: ScoredBatch) -> None:
    mask = batch.mask_BT
    if mask.dtype != torch.bool:
        raise ScoreError(f"mask has dtype {mask.dtype}; expected bool")
    if batch.offsets is None and (mask.ndim != 2 or mask.shape[0] != batch.responses):
        raise ScoreError(f"mask has shape {list(mask.shape)}; expected [{batch.responses}, T]")
    if batch.offsets is not None:
        _check_offsets(batch)
    for name in ("old_logp", "teacher_logp", "teacher_entropy", "initial_logp", "segments"):
        tensor = getattr(batch, f"{name}_BT")
        if tensor is None:
            continue
        if tensor.shape != mask.shape:
            raise ScoreError(f"{name} has shape {list(tensor.shape)}; expected {list(mask.shape)}, the shape of mask")
        if name == "segments":
            if tensor.dtype not in INTEGERS:
                raise ScoreError(f"segments has dtype {tensor.dtype}; expected integers (turn labels)")
        elif tensor.dtype not in SCORE_DTYPES or tensor.dtype != batch.old_logp_BT.dtype:
            raise ScoreError(
                f"{name} has dtype {tensor.dtype}; expected float32 (or float64 throughout), because bf16 scores "
                "lose the gap between teacher and student"
            )


def _check_offsets(batch: ScoredBatch) -> None:
    offsets, mask = batch.offsets, batch.mask_BT
    if offsets is None or mask.ndim != 1:
        raise ScoreError(f"a packed batch has shape {list(mask.shape)} for mask; expected [N]")
    if offsets.ndim != 1 or offsets.dtype not in INTEGERS:
        raise ScoreError(
            f"offsets has shape {list(offsets.shape)} and dtype {offsets.dtype}; expected integers "
            f"[{batch.responses + 1}]"
        )
    ends = offsets.tolist()
    if len(ends) != batch.responses + 1 or ends[0] != 0 or ends[-1] != mask.shape[0] or sorted(ends) != ends:
        raise ScoreError(
            f"offsets run {ends[:1]} to {ends[-1:]} in {len(ends)} values; expected {batch.responses + 1} "
            f"ascending values from 0 to {mask.shape[0]}"
        )
