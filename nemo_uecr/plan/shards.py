"""Which rank holds which part of a model under tensor, context, data and pipeline parallelism.

Megatron orders ranks with tensor fastest, then context, data, and pipeline slowest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_uecr.plan.shapes import ModelShape, layer_parameters

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import ParallelConfig

__all__ = [
    "Grid",
    "Place",
    "fullest_stage",
    "grid_of",
    "rollout_fault",
    "shape_faults",
    "stage_layers",
    "stage_parameters",
]


@dataclass(frozen=True)
class Place:
    """Coordinates of a rank."""

    tensor: int
    context: int
    data: int
    pipeline: int


@dataclass(frozen=True)
class Grid:
    """How a model is cut over its GPUs."""

    tensor: int
    context: int
    data: int
    pipeline: int
    sequence: bool

    @property
    def ranks(self) -> int:
        """GPUs of the model."""
        return self.tensor * self.context * self.data * self.pipeline

    def place(self, rank: int) -> Place:
        """Coordinates of a rank."""
        rest, tensor = divmod(rank, self.tensor)
        rest, context = divmod(rest, self.context)
        pipeline, data = divmod(rest, self.data)
        return Place(tensor, context, data, pipeline)


def grid_of(parallel: ParallelConfig, gpus: int) -> Grid:
    """The grid of a model on that many GPUs; the configuration was checked to divide them."""
    model = parallel.tensor * parallel.context * parallel.pipeline
    return Grid(parallel.tensor, parallel.context, gpus // model, parallel.pipeline, parallel.sequence)


def stage_layers(shape: ModelShape, grid: Grid, stage: int) -> range:
    """Layers of a pipeline stage."""
    each = shape.layers // grid.pipeline
    return range(stage * each, (stage + 1) * each)


def stage_parameters(shape: ModelShape, grid: Grid, stage: int) -> int:
    """Parameters that one rank of a pipeline stage holds.

    Norms and the output bias are whole on every tensor rank; matrices and the vocabulary are cut. A tied output layer
    is the embedding itself with one stage, and a copy on the last of several.
    """
    whole = 2 * shape.hidden + (2 * shape.head_dim if shape.qk_norm else 0) + (shape.hidden if shape.output_bias else 0)
    cut = layer_parameters(shape) - whole
    count = len(stage_layers(shape, grid, stage)) * (whole + cut // grid.tensor)
    table = -(-shape.vocabulary // grid.tensor) * shape.hidden
    first, last = stage == 0, stage == grid.pipeline - 1
    if first:
        count += table
    if last:
        count += shape.hidden  # the final norm
        if not (shape.tied and first):
            count += table
    return count


def fullest_stage(shape: ModelShape, grid: Grid) -> int:
    """Parameters that one rank of the fullest pipeline stage holds."""
    return max(stage_parameters(shape, grid, stage) for stage in range(grid.pipeline))


def shape_faults(shape: ModelShape, grid: Grid, *, role: str) -> list[str]:
    """What of a model its layout cannot cut into equal parts, one sentence each."""
    cut = {
        "query heads": shape.heads,
        "key and value heads": shape.kv_heads,
        "feed-forward columns": shape.feed_forward,
    }
    faults = []
    if any(count % grid.tensor for count in cut.values()):
        common = math.gcd(*cut.values())
        sizes = ", ".join(f"{count} {what}" for what, count in cut.items())
        faults.append(
            f"{role}.parallel.tensor: got {grid.tensor}, expected a divisor of {common}; the model has {sizes}"
        )
    if shape.layers % grid.pipeline:
        faults.append(
            f"{role}.parallel.pipeline: got {grid.pipeline}, expected a divisor of the model's {shape.layers} layers"
        )
    return faults


MOST_RANKS = 1024
VLLM_PADDING = 64
"""vLLM pads a vocabulary to a multiple of it before it cuts it."""


def rollout_fault(shape: ModelShape, tensor: int) -> str | None:
    """Why vLLM cannot cut a model over that many GPUs; None where it can.

    Its rule: the ranks divide query heads, feed-forward columns and the padded vocabulary; and they divide the key and
    value heads, or, where there are more ranks than those, the heads divide the ranks.
    """
    padded = -(-shape.vocabulary // VLLM_PADDING) * VLLM_PADDING
    cut = {"query heads": shape.heads, "feed-forward columns": shape.feed_forward, "padded output columns": padded}
    common, kv_heads = math.gcd(*cut.values()), shape.kv_heads
    fits = [size for size in range(1, min(common, MOST_RANKS) + 1) if common % size == 0 and _shares(kv_heads, size)]
    if tensor in fits:
        return None
    sizes = ", ".join(f"{count} {what}" for what, count in cut.items())
    return (
        f"rollout.tensor: got {tensor}, expected one of {', '.join(map(str, fits))}; the student has {sizes} and "
        f"{kv_heads} key and value heads"
    )


def _shares(kv_heads: int, ranks: int) -> bool:
    return kv_heads % ranks == 0 if kv_heads >= ranks else ranks % kv_heads == 0
