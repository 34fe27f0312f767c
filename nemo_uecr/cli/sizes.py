"""Sizes of a model by its name, the demo's included: those have a recipe, so that nothing is trained to know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_uecr.errors import ConfigError

if TYPE_CHECKING:
    from nemo_uecr.plan.shapes import ModelShape

__all__ = ["sizes"]


def sizes(name: str, role: str) -> ModelShape:
    """Sizes of a model.

    Args:
        name: folder, hub name, `demo:student` or `demo:teacher`.
        role: section of the configuration, for messages.

    Raises:
        ConfigError: the demo has no such model.
        DataError: the sizes are not known.
    """
    from nemo_uecr.plan.shapes import ModelShape, shape_of

    if not name.startswith("demo:"):
        return shape_of(name, role=role)
    from nemo_uecr.demo.recipe import DEMO_RECIPE
    from nemo_uecr.demo.tokenizer import MODEL_MAX_LENGTH, build_tokenizer

    models = {"demo:student": DEMO_RECIPE.student, "demo:teacher": DEMO_RECIPE.teacher}
    if name not in models:
        raise ConfigError(f"{role}.model_name: got {name!r}, expected one of {', '.join(models)}")
    shape = models[name].shape
    return ModelShape(
        vocabulary=len(build_tokenizer()),
        hidden=shape.hidden_size,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.key_value_heads,
        head_dim=shape.head_dim,
        feed_forward=shape.intermediate_size,
        tied=True,
        qk_norm=True,
        qkv_bias=False,
        output_bias=False,
        positions=MODEL_MAX_LENGTH,
    )
