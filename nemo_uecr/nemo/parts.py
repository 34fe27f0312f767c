"""What NeMo-RL makes and takes back: the parts of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: An evaluation in the place of NeMo-RL's validation: metrics and timings of a generation object at a step.
Evaluate = Callable[[Any, int], tuple[dict[str, float], dict[str, float]]]


@dataclass(frozen=True)
class Prepared:
    """What NeMo-RL needs before its set-up."""

    tokenizer: Any
    dataset: Any
    environments: Any


@dataclass(frozen=True)
class SetUp:
    """What NeMo-RL's set-up returned, as far as the loop takes it, and the steps that a checkpoint brought."""

    policy: Any
    generation: Any
    dataloader: Any
    logger: Any
    checkpointer: Any
    state: Any
    config: Any
    completed_steps: int
