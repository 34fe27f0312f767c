"""The records that every back end hands to the mathematics and gets back.

Shape legend: B = responses in the batch, T = tokens (padded), N = tokens of all responses (packed).
Token fields are ``[B, T]``; in a packed batch they are ``[N]`` and ``offsets`` delimits the responses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from nemo_uecr.core.checks import check_responses, check_tokens
from nemo_uecr.core.layout import Block, cut
from nemo_uecr.errors import ConfigError

#: Added to every group standard deviation (the paper's audits state the value).
EPSILON = 1e-6
#: R^T and the OPD advantage clip the gap to this many nats on both sides.
GAP_CLIP = 5.0

#: Beyond these, float32 products of settings and scores overflow.
LARGEST = 1e12
SMALLEST_SCALE = 1e-12
#: Integers up to here are exact as floating-point numbers.
LARGEST_INTEGER = 2**53


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
        check_responses(self)
        check_tokens(self)

    @property
    def responses(self) -> int:
        """Number of responses B."""
        return self.task_reward_B.shape[0]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks that cover every sampled token once, trimmed to the columns in use."""
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
