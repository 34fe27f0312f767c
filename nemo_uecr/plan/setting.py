"""Everything that the plan of a NeMo-RL run is computed from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from nemo_uecr.config.load import flat_values
from nemo_uecr.config.methods import needs_of
from nemo_uecr.config.nemo_checks import student_gpus, teacher_gpus
from nemo_uecr.errors import ConfigError
from nemo_uecr.plan.hardware import Device, Efficiency
from nemo_uecr.plan.shapes import ModelShape, shape_of
from nemo_uecr.plan.shards import Grid, grid_of

if TYPE_CHECKING:
    from pydantic import BaseModel

    from nemo_uecr.config.nemo_schema import NemoConfig

__all__ = ["Lengths", "Setting", "check_numbers", "response_lengths", "setting_of"]


@dataclass(frozen=True)
class Lengths:
    """Tokens that the times are computed for; memory always takes the longest."""

    prompt: int
    """Mean."""

    response: int
    """Mean, responses that are cut at the longest included."""

    sigma: float
    """Standard deviation of the logarithm of a response's length before the cut; 0: all have the mean."""

    @property
    def whole(self) -> int:
        """Prompt and response."""
        return self.prompt + self.response


def response_lengths(lengths: Lengths, longest: int, count: int) -> list[float]:
    """Quantiles (i + 1/2) / count of min(exp(mu + sigma Z), longest), Z normal; mu gives them the stated mean."""
    spread = [lengths.sigma * NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    most = math.log(longest)
    low, high = math.log(lengths.response) - spread[-1], most - spread[0]
    for _ in range(60):
        middle = (low + high) / 2
        drawn = [math.exp(min(middle + one, most)) for one in spread]
        low, high = (middle, high) if sum(drawn) < count * lengths.response else (low, middle)
    return drawn


@dataclass(frozen=True)
class Setting:
    """A validated configuration with the sizes of its models and the limits of its devices."""

    config: NemoConfig
    student: ModelShape
    grid: Grid
    """The student's."""

    teacher: ModelShape | None
    """None where the method reads no teacher."""

    teacher_grid: Grid | None
    device: Device
    efficiency: Efficiency
    lengths: Lengths

    @property
    def responses(self) -> int:
        """B."""
        return self.config.rollout.prompts_per_step * self.config.rollout.responses_per_prompt

    @property
    def capacity(self) -> int:
        """Bytes that each GPU offers."""
        return self.device.memory or 0

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with the longest response."""
        return self.config.data.max_prompt_tokens + self.config.rollout.max_response_tokens

    @property
    def dedicated(self) -> bool:
        """Whether the teacher has GPUs of its own."""
        return self.config.teacher.dedicated_gpus > 0

    @property
    def processes(self) -> int:
        """Worker processes on each student GPU: student, vLLM, and a colocated teacher."""
        return 2 if self.teacher is None or self.dedicated else 3

    @property
    def replicas(self) -> int:
        """Independent vLLM engines."""
        return self.grid.ranks // self.config.rollout.tensor

    @property
    def reference(self) -> bool:
        """Whether the initial student is kept for the reference KL."""
        return self.config.loss.reference_kl > 0


MOST = 2**53
"""Of any number of a configuration: beyond it floating point no longer counts."""


def check_numbers(config: BaseModel) -> None:
    """Refuse numbers that no run has, before they are multiplied.

    Raises:
        ConfigError: naming the first.
    """
    for key, value in flat_values(config).items():
        if isinstance(value, int) and abs(value) > MOST:
            raise ConfigError(f"{key}: got a number of {value.bit_length()} bits, expected at most {MOST}")


def setting_of(config: NemoConfig, device: Device, efficiency: Efficiency, lengths: Lengths) -> Setting:
    """Look up the models' sizes and lay them out.

    Raises:
        DataError: the sizes of a model are not known.
        ConfigError: a number is beyond any run.
    """
    check_numbers(config)
    teacher = teacher_grid = None
    if needs_of(config.method.name).needs_teacher and config.teacher.model_name is not None:
        teacher = shape_of(config.teacher.model_name, role="teacher")
        teacher_grid = grid_of(config.teacher.parallel, teacher_gpus(config))
    return Setting(
        config=config,
        student=shape_of(config.student.model_name, role="student"),
        grid=grid_of(config.student.parallel, student_gpus(config)),
        teacher=teacher,
        teacher_grid=teacher_grid,
        device=device,
        efficiency=efficiency,
        lengths=lengths,
    )
