"""The sizes of a model, from its `config.json` or a table; its parameters, and which rank holds which of them.

Shape legend: V = vocabulary, H = hidden size, F = feed-forward size, L = layers, D = dimension of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.data.models import DecoderSizes, Fields, decoder_sizes, read_fields
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import ParallelConfig

__all__ = [
    "ARCHITECTURES",
    "KNOWN",
    "Grid",
    "ModelShape",
    "fullest_stage",
    "grid_of",
    "layer_parameters",
    "parameters",
    "shape_of",
    "shape_of_values",
    "stage_layers",
    "stage_parameters",
]

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Dense decoders whose parameters the formulas below count."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys by which a config.json says that its feed-forward layers are several."""


@dataclass(frozen=True)
class ModelShape(DecoderSizes):
    """Sizes of a dense decoder with grouped-query attention and a gated feed-forward layer."""

    qk_norm: bool
    """Whether queries and keys are normalised (Qwen3)."""

    qkv_bias: bool
    """Whether queries, keys and values have a bias (Qwen2)."""

    output_bias: bool
    """Whether the attention's output has a bias."""

    positions: int
    """Longest sequence that the model was made for; 0: not stated."""


def _qwen3(hidden: int, layers: int, heads: int, feed_forward: int, *, tied: bool) -> ModelShape:
    return ModelShape(
        vocabulary=151_936,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        feed_forward=feed_forward,
        tied=tied,
        qk_norm=True,
        qkv_bias=False,
        output_bias=False,
        positions=40_960,
    )


KNOWN: dict[str, ModelShape] = {
    "Qwen/Qwen3-0.6B": _qwen3(1024, 28, 16, 3072, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 28, 16, 6144, tied=True),
    "Qwen/Qwen3-4B": _qwen3(2560, 36, 32, 9728, tied=True),
    "Qwen/Qwen3-8B": _qwen3(4096, 36, 32, 12288, tied=False),
    "Qwen/Qwen3-14B": _qwen3(5120, 40, 40, 17408, tied=False),
    "Qwen/Qwen3-32B": _qwen3(5120, 64, 64, 25600, tied=False),
}
"""Hub name -> sizes; the `-Base` models have the same, except that they were made for 32,768 positions."""


def shape_of(name: str, *, role: str) -> ModelShape:
    """Sizes of a model that a configuration names.

    Args:
        name: a local folder with `config.json`, or a hub name of the table.
        role: section of the configuration, for messages.

    Raises:
        DataError: the folder has no readable configuration of a known architecture, or the name is not in the table.
    """
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        return _from_config(folder / "config.json", role)
    known = KNOWN.get(name.removesuffix("-Base"))
    if known is not None:
        return replace(known, positions=32_768) if name.endswith("-Base") else known
    raise DataError(
        f"{role}.model_name: got {name!r}, whose sizes are not known; expected a folder with the model's config.json, "
        f"or one of {', '.join(KNOWN)} (to plan a model that is yet to be made, name the one it is made from)"
    )


def _from_config(path: Path, role: str) -> ModelShape:
    return shape_of_values(read_fields(path, prefix=f"{role}.model_name: "))


def shape_of_values(fields: Fields) -> ModelShape:
    """Sizes of a model from what its `config.json` holds.

    Raises:
        DataError: it is no dense decoder of a known architecture, or a size is missing.
    """
    where, values = fields.where, fields.values
    kind = values.get("model_type")
    if kind not in ARCHITECTURES or values.get("mlp_bias"):
        raise DataError(
            f"{where} has model_type {kind!r:.60}{' with mlp_bias' if values.get('mlp_bias') else ''}; "
            f"expected one of {', '.join(ARCHITECTURES)} without it, whose parameters are counted here"
        )
    experts = next((key for key in EXPERTS if values.get(key)), None)
    if experts is not None:
        raise DataError(
            f"{where} has {experts} {values[experts]!r:.60}; expected a dense model, experts are not counted"
        )
    bias = fields.switch("attention_bias") if "attention_bias" in values else False
    return ModelShape(
        **vars(decoder_sizes(fields)),
        qk_norm=kind == "qwen3",
        qkv_bias=kind == "qwen2" or bias,
        output_bias=kind != "qwen2" and bias,
        positions=fields.count("max_position_embeddings") if "max_position_embeddings" in values else 0,
    )


def layer_parameters(shape: ModelShape) -> int:
    """Parameters of one layer: attention, feed-forward, two norms, the heads' norms and biases where it has them."""
    attention = shape.hidden * (2 * shape.query + 2 * shape.key_value)
    feed_forward = 3 * shape.hidden * shape.feed_forward
    heads = 2 * shape.head_dim if shape.qk_norm else 0
    bias = shape.query + 2 * shape.key_value if shape.qkv_bias else 0
    bias += shape.hidden if shape.output_bias else 0
    return attention + feed_forward + 2 * shape.hidden + heads + bias


def parameters(shape: ModelShape) -> int:
    """Parameters of the whole model; a tied output layer counts once."""
    tables = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return tables + shape.layers * layer_parameters(shape) + shape.hidden


@dataclass(frozen=True)
class Place:
    """Coordinates of a rank."""

    tensor: int
    context: int
    data: int
    pipeline: int


@dataclass(frozen=True)
class Grid:
    """How a model is cut over its GPUs.

    Megatron orders ranks with tensor fastest, then context, data, and pipeline slowest.
    """

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
