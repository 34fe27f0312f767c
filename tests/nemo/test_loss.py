"""The loss that NeMo-RL's workers call, against `core`; inside/test_batches.py has every back end."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_uecr.core.loss import policy_loss
from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN, OPD_COLUMN, PREFIX, MaxReducedMetric, UecrLoss
from tests.config.shipped import GRPO, nemo_run

KL = "loss.reference_kl=0.1"


def loss_of(*changes: str) -> UecrLoss:
    """Of ``grpo``, or of another method."""
    return UecrLoss(nemo_run(*GRPO, "loss.reference_kl=0", *changes), native=None)


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


def test_it_is_cores_loss() -> None:
    data = data_of()
    logp = (data["prev_logprobs"][:, 1:] + 0.3).requires_grad_()
    total, _ = call(loss_of(KL), data, logp)
    mask = data["token_mask"][:, 1:].bool()
    expected = policy_loss(
        logp, data["prev_logprobs"][:, 1:], data["advantages"][:, 1:], mask, denominator=float(mask.sum()),
        ref_logp=data["reference_policy_logprobs"][:, 1:], kl_coef=0.1,
    )  # fmt: skip
    assert torch.equal(total, expected.total)


def test_masked_rows_do_not_count() -> None:
    data = data_of()
    logp = data["prev_logprobs"][:, 1:] + 0.2
    alone, _ = call(loss_of(), {name: value[:1] for name, value in data.items()}, logp[:1])
    masked, metrics = call(loss_of(), data | {"sample_mask": torch.tensor([1.0, 0.0])}, logp)
    assert float(masked) == pytest.approx(float(alone), abs=1e-7)
    assert metrics["num_valid_samples"] == 1.0


def test_metrics_of_sequences_add_up_to_those_of_the_batch() -> None:
    """NeMo-RL calls the loss once for each packed sequence and adds the metrics."""
    data = data_of()
    logp = data["prev_logprobs"][:, 1:] + 0.2
    tokens = data["token_mask"][:, 1:].sum()
    _, whole = call(loss_of(KL), data, logp)
    summed: dict[str, Any] = {}
    for row in range(2):
        part = {name: value[row : row + 1] for name, value in data.items()}
        _, metrics = loss_of(KL)(logp[row : row + 1], part, torch.tensor(2.0), tokens)
        for name, value in metrics.items():
            summed[name] = summed.get(name, 0) + value
    ranges = {name for name in whole if name.startswith("probs_ratio") and name.endswith(("_min", "_max"))}
    for name in whole.keys() - ranges:
        assert summed[name] == pytest.approx(whole[name], abs=1e-6), name


def test_the_second_surrogate_joins_nemo_rls_own_loss() -> None:
    """A native loss of 10, and -min(1.5 * -1, 1.2 * -1) = 1.5 with coefficient 2: 13."""
    ones = torch.tensor([[0.0, 0.0, 1.0]])
    data = data_of(
        1, 3, token_mask=torch.tensor([[0, 0, 1]]), advantages=ones, prev_logprobs=torch.zeros(1, 3),
        **{OPD_COLUMN: -ones},
    )  # fmt: skip
    # The reference KL is inside the native loss, once; ours reports none of its own.
    loss = loss_of(KL, "method.name=grpo_plus_opd", "method.opd_coef=2", "teacher.model_name=t")
    loss._native = lambda **given: (torch.tensor(10.0), {"loss": 10.0, "probs_ratio": 7.0})
    total, metrics = call(loss, data, torch.tensor([[0.0, math.log(1.5)]]))
    assert float(total) == pytest.approx(13.0, abs=1e-5)
    assert (metrics["loss"], metrics["probs_ratio"]) == (pytest.approx(13.0, abs=1e-5), 7.0)
    assert metrics[f"{PREFIX}ref_kl"] == 0.0


@pytest.mark.parametrize("values", [(0.1, math.nan, 0.1), (math.nan, 0.1), (0.1, math.nan)])
def test_a_nan_ratio_survives_the_summing_of_micro_batches(values: tuple[float, ...]) -> None:
    assert math.isnan(sum(map(MaxReducedMetric, values)))
    assert sum(map(MaxReducedMetric, (0.1, 0.3, 0.2))) == 0.3
