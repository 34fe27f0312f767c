"""The sections of a configuration that both back ends have, and what every section is.

A default stands either on the field here or in a YAML file, never at a call site. Unknown keys are errors.
Texts that look like numbers stay texts, booleans are not numbers, NaN and infinities are refused.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemo_uecr.config import cross_checks
from nemo_uecr.config.kinds import (
    ClipHigh,
    Count,
    NonNegative,
    NonNegativeInt,
    Positive,
    SamplingTemperature,
    Seed,
    Share,
    Std,
    Temperature,
    Text,
    TopP,
)
from nemo_uecr.config.methods import with_parameters

__all__ = [
    "EvaluationConfig",
    "LossConfig",
    "MethodConfig",
    "RunConfig",
    "SamplingConfig",
    "Section",
    "TolerancesConfig",
]


class Section(BaseModel):
    """Base of every section: frozen, strict types, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        # `model_name` is a key of ours; older pydantic reserves the prefix.
        protected_namespaces=(),
    )


class RunConfig(Section):
    """Where the run lives and what seeds it."""

    folder: Text
    """Output folder of the run; created when missing. One run per folder."""

    seed: Seed
    """Seeds the sampling of prompts and tokens, and every permutation."""


class SamplingConfig(Section):
    """What every back end says of the student's responses."""

    prompts_per_step: Count
    """P: prompts a step."""

    responses_per_prompt: Annotated[int, Field(ge=2)]
    """G: responses a prompt; a group of one has no advantage."""

    temperature: SamplingTemperature
    """T_r: sampling temperature, also the temperature of the PPO ratio."""

    top_p: TopP
    """Nucleus mass of generation only; 1 is off."""

    top_k: NonNegativeInt
    """Number of candidate tokens of generation only; 0 is off."""

    max_response_tokens: Count
    """Longest response in tokens; a response cut there counts as truncated."""


class MethodConfig(Section):
    """The advantage: which method, and its settings."""

    name: Text
    """One of the methods: the paper's fourteen, and those added to the registry."""

    alpha: float | None = None
    """Weight of the teacher reward in R^U. Required by the methods that use it."""

    rho: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Strength of the token redistribution. Required by the methods that use it."""

    tau_delta: Positive | None = None
    """Scale of the gap inside the direction's tanh, nats. Required by the methods that use it."""

    tau_entropy: Positive | None = None
    """Scale of the teacher entropy in the confidence, nats. Required by the methods that use it."""

    std_floor: NonNegative = 0.0
    """Least standard deviation a group is divided by; 0 is the paper."""

    opd_coef: float = 1.0
    """Weight of the second surrogate, PG(A_opd)."""

    std: Std = "population"
    """Divisor of the group's variance: G (population) or G - 1 (sample)."""

    scoring_noise: Positive = 1e-3
    """Groups whose standard deviation lies below it are counted in telemetry; changes no advantage."""

    turn_separator: Text | None = None
    r"""Token text that ends a turn; null: one turn. The end of a line is "\n" in YAML, $'...=\n' in a shell."""

    parameters: dict[str, float] = {}
    """Numbers of one method's own; what is not stated has the default in the registry."""

    @model_validator(mode="before")
    @classmethod
    def _parameters_are_complete(cls, values: object) -> object:
        return with_parameters(values)

    @field_validator("name")
    @classmethod
    def _name_is_known(cls, name: str) -> str:
        return cross_checks.known_method(name)

    @model_validator(mode="after")
    def _settings_are_complete(self) -> Self:
        cross_checks.method_settings(self)
        return self


class LossConfig(Section):
    """The clipped surrogate and the reference KL."""

    clip_low: Share
    """The ratio is clipped below at 1 - clip_low."""

    clip_high: ClipHigh
    """The ratio is clipped above at 1 + clip_high."""

    reference_kl: NonNegative
    """Coefficient of the k3 KL to the initial student; 0: no reference model is loaded, unless the method reads it."""


class EvaluationConfig(Section):
    """avg@k on named benchmark files, with decoding of its own."""

    every: NonNegativeInt
    """Steps between evaluations; 0: only after the last step."""

    at_start: bool
    """Whether the untrained student is evaluated too."""

    samples: Count
    """k: responses a problem."""

    temperature: Temperature
    """Decoding temperature, at least 0.001; or 0, which is greedy and asks for samples = 1."""

    top_p: TopP
    """Nucleus mass; 1 is off."""

    top_k: NonNegativeInt
    """Number of candidate tokens; 0 is off."""

    seed: Seed
    """Seed of the decoding, the same at every evaluation."""

    max_tokens: Count
    """Longest response in tokens."""

    benchmarks: dict[Text, Text]
    """Name and JSONL file of each benchmark; may be empty."""

    bootstrap: Annotated[int, Field(ge=100)]
    """Resamples behind the 95% intervals."""


class TolerancesConfig(Section):
    """Largest residual of each identity; a larger one stops the run."""

    budget: Positive = 1e-6
    """|mean over valid tokens of w - 1|, as stored in float32."""

    decomposition: Positive = 1e-6
    """|A^U - (A^task|U + alpha A^T|U)|, relative to max(1, |A^task|U| + |alpha A^T|U|)."""

    residual_bound: Positive = 1e-6
    """Excess of |q| over 1."""

    log_weight: Positive = 1e-6
    """|mean log weight| of distilled_rl where the advantage is positive."""

    first_ratio: Positive = 1e-5
    """|ratio - 1| at the first optimizer step of a batch."""
