"""The smallest model that learns something."""

from __future__ import annotations

from nemo_uecr.demo.supervised import CourseConfig, ModelConfig


def tiny_model(*, steps: int, tokens_per_batch: int) -> ModelConfig:
    course = CourseConfig(
        steps=steps, adam_learning_rate=1e-2, muon_learning_rate=2e-2, skip_rate=0.5, error_rate=0.0,
        tokens_per_batch=tokens_per_batch,
    )  # fmt: skip
    return ModelConfig(
        hidden_size=16, intermediate_size=32, layers=1, heads=2, key_value_heads=1, head_dim=8, course=course
    )
