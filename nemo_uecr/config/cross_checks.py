"""Rules that span several keys. Each raises ValueError with a sentence that names the keys it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_uecr.config.methods import REQUIRED_SETTINGS, check_parameters, nearest_name, needs_of
from nemo_uecr.method_registry import REGISTRY

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import AnyConfig
    from nemo_uecr.config.schema import Config, MethodConfig

__all__ = ["best_checkpoint", "decoding", "known_method", "method_settings", "microbatch", "minibatch", "teacher"]

#: Between these temperatures logits / T stay within float32.
COLDEST, HOTTEST = 1e-3, 1e3


def known_method(name: str) -> str:
    """Refuse a method that does not exist, naming the nearest."""
    if name not in REGISTRY:
        raise ValueError(
            f"method.name: got {name!r}, the nearest method is {nearest_name(name, REGISTRY)!r}; "
            f"known methods: {', '.join(REGISTRY)}"
        )
    return name


def method_settings(method: MethodConfig) -> None:
    """Refuse a method without the settings that it computes with."""
    needed = needs_of(method.name).config_settings
    missing = [key for key in REQUIRED_SETTINGS if key in needed and getattr(method, key) is None]
    if missing:
        keys = ", ".join(f"method.{key}" for key in missing)
        raise ValueError(f"{keys}: missing, but method {method.name} needs it; write method.{missing[0]}=VALUE")
    check_parameters(method.name, method.parameters)


def minibatch(config: AnyConfig) -> None:
    """Refuse a mini-batch that does not divide the batch of responses."""
    responses = config.rollout.prompts_per_step * config.rollout.responses_per_prompt
    size = config.train.minibatch_responses
    if responses % size:
        raise ValueError(
            f"train.minibatch_responses: got {size}, expected a divisor of rollout.prompts_per_step * "
            f"rollout.responses_per_prompt = {responses}"
        )


def microbatch(config: Config) -> None:
    """Refuse a micro-batch larger than the mini-batch."""
    size, most = config.train.microbatch_responses, config.train.minibatch_responses
    if size > most:
        raise ValueError(f"train.microbatch_responses: got {size}, expected at most train.minibatch_responses = {most}")


def decoding(config: AnyConfig) -> None:
    """Refuse several greedy samples, and a temperature that is neither greedy nor usable in float32."""
    if 0 < config.evaluation.temperature < COLDEST:
        raise ValueError(
            f"evaluation.temperature: got {config.evaluation.temperature:g}, expected 0, or a number from {COLDEST:g} "
            f"to {HOTTEST:g}"
        )
    if config.evaluation.temperature == 0 and config.evaluation.samples != 1:
        raise ValueError(
            f"evaluation.samples: got {config.evaluation.samples}, expected 1 because "
            "evaluation.temperature = 0 is greedy and every sample would be the same"
        )


def best_checkpoint(config: Config) -> None:
    """Refuse a best checkpoint without anything to compare it by."""
    if config.checkpoint.keep_best and not config.evaluation.benchmarks:
        raise ValueError(
            "checkpoint.keep_best: got true, but evaluation.benchmarks is empty and nothing says which is "
            "best; name a benchmark or set checkpoint.keep_best=false"
        )


def teacher(config: Config) -> None:
    """Refuse a method that reads teacher scores when there is no teacher."""
    if needs_of(config.method.name).needs_teacher and config.teacher.model_name is None:
        raise ValueError(
            f"teacher.model_name: got null, but method {config.method.name} reads a teacher; "
            "name a model, or choose method.name=grpo"
        )
