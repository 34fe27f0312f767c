"""What would fit when a plan does not: the first changes of one or two keys after which everything fits into memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nemo_uecr.config.nemo_checks import longest, packed
from nemo_uecr.errors import ConfigError
from nemo_uecr.plan.nemo import nemo_plan, variant

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import NemoConfig
    from nemo_uecr.plan.hardware import Device, Efficiency
    from nemo_uecr.plan.setting import Lengths

__all__ = ["what_fits"]

SUGGESTIONS = 3
SIZES = (2, 4, 8)
SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def what_fits(config: NemoConfig, device: Device, efficiency: Efficiency, lengths: Lengths) -> list[str]:
    """Changes as the user would type them, the gentlest first; empty when none of those tried is enough."""
    found: list[dict[str, Any]] = []
    for changes in _candidates(config):
        if any(fewer.items() <= changes.items() for fewer in found):
            continue  # less is enough
        try:
            plan = nemo_plan(variant(config, changes), device, efficiency, lengths)
        except ConfigError:
            continue
        if not plan.misfits:
            found.append(changes)
        if len(found) == SUGGESTIONS:
            break
    return [" ".join(f"{key}={_written(value)}" for key, value in changes.items()) for changes in found]


def _candidates(config: NemoConfig) -> Iterator[dict[str, Any]]:
    least = packed(config, longest(config))
    yield {"student.activation_checkpointing": True}
    yield {"train.tokens_per_microbatch": least, "scoring.tokens_per_microbatch": least}
    yield {"scoring.chunk_tokens": 512}
    for share in SHARES:
        yield {"rollout.gpu_memory": share}
    for size in SIZES:
        yield _tensor("student", size)
        yield _tensor("teacher", size)
        yield _tensor("student", size) | _tensor("teacher", size)
        yield {"rollout.tensor": size}
        yield _tensor("student", size) | {"rollout.tensor": size}
        yield _tensor("student", size) | _tensor("teacher", size) | {"rollout.tensor": size}
    for size in SIZES:
        yield {"student.parallel.pipeline": size}
        yield {"student.parallel.context": size}
    for nodes in SIZES:
        yield {"cluster.nodes": config.cluster.nodes * nodes}
        for size in SIZES:
            spread = _tensor("student", size) | _tensor("teacher", size) | {"rollout.tensor": size}
            yield spread | {"cluster.nodes": config.cluster.nodes * nodes}


def _tensor(role: str, size: int) -> dict[str, Any]:
    return {f"{role}.parallel.tensor": size, f"{role}.parallel.sequence": True}


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
