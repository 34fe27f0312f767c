"""NeMo-RL's call of the loss on small data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN, UecrLoss


def loss_of(*, kl_coef: float = 0.0, opd_coef: float | None = None) -> UecrLoss:
    """Of ``grpo``, or with a coefficient of ``grpo_plus_opd``."""
    loss: Any = SimpleNamespace(clip_low=0.2, clip_high=0.2, reference_kl=kl_coef)
    return UecrLoss(loss, opd_coef=opd_coef, far=0.1, loss_type=None, input_type=None, native=None)


def data_of(rows: int = 2, width: int = 5, **changes: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def noise() -> Tensor:
        return torch.randn(rows, width, generator=generator)

    mask = torch.ones(rows, width, dtype=torch.long)
    mask[:, :2] = 0
    mask[0, 4:] = 0
    values = {
        "token_mask": mask, "sample_mask": torch.ones(rows), "advantages": noise(), "prev_logprobs": -noise().abs(),
        "generation_logprobs": -noise().abs(), "reference_policy_logprobs": -noise().abs(),
        FIRST_STEP_COLUMN: torch.ones(rows),
    }  # fmt: skip
    return values | changes


def call(loss: UecrLoss, data: dict[str, Tensor], logp: Tensor) -> tuple[Tensor, dict[str, float]]:
    tokens = (data["token_mask"][:, 1:] * data["sample_mask"][:, None]).sum()
    return loss(logp, data, data["sample_mask"].sum(), tokens)
