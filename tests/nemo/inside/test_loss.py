"""The loss that NeMo-RL's workers call, against `core`; test_batches.py has every back end."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_uecr.core.loss import policy_loss
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.loss import FIRST_STEP, FIRST_STEP_COLUMN, OPD_COLUMN, PREFIX, UecrLoss, first_ratio_error
from tests.nemo.made_recipe import METHOD, made_settings

pytestmark = pytest.mark.usefixtures("nemo_rl")

KL = 0.1


def loss_of(
    *,
    kl: str = "paper",
    reference_kl: float = 0.0,
    opd_coef: float | None = None,
    lag: int | None = None,
    **loss_fn: Any,
) -> UecrLoss:
    """Of ``grpo``, or of a method with a second surrogate, with further keys of the recipe's section loss_fn."""
    second = METHOD | {"name": "grpo_plus_opd", "opd_coef": opd_coef}
    method = {"uecr__method": {"name": "grpo"}, "uecr__teacher": None} if opd_coef is None else {"uecr__method": second}
    keys = {"reference_policy_kl_penalty": reference_kl, "ratio_clip_min": 0.2, "ratio_clip_max": 0.2, **loss_fn}
    section = upstream.native("ClippedPGLossFn").__init__.__annotations__["cfg"](**keys)
    return UecrLoss(replace(made_settings(9, **method), kl=kl, reference_kl=reference_kl, lag=lag), section)


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
    total, metrics = call(loss_of(reference_kl=KL), data, logp)
    mask = data["token_mask"][:, 1:].bool()
    expected = policy_loss(
        logp, data["prev_logprobs"][:, 1:], data["advantages"][:, 1:], mask, denominator=float(mask.sum()),
        ref_logp=data["reference_policy_logprobs"][:, 1:], kl_coef=KL,
    )  # fmt: skip
    assert float(total) == pytest.approx(float(expected.total), abs=1e-6)
    (ours,), (cores,) = (torch.autograd.grad(each, logp, retain_graph=True) for each in (total, expected.total))
    torch.testing.assert_close(ours, cores, atol=1e-7, rtol=1e-5)
    assert metrics[f"{PREFIX}ref_kl"] == pytest.approx(float(expected.reference_kl), abs=1e-6)
    assert metrics[f"{PREFIX}pg_loss"] == pytest.approx(float(expected.surrogate), abs=1e-6)


def test_masked_rows_do_not_count() -> None:
    data = data_of()
    logp = data["prev_logprobs"][:, 1:] + 0.2
    alone, _ = call(loss_of(), {name: value[:1] for name, value in data.items()}, logp[:1])
    masked, metrics = call(loss_of(), data | {"sample_mask": torch.tensor([1.0, 0.0])}, logp)
    assert float(masked) == pytest.approx(float(alone), abs=1e-7)
    assert metrics["num_valid_samples"] == 1.0


@pytest.mark.parametrize("kl", ["paper", "recipe"])
def test_metrics_of_sequences_add_up_to_those_of_the_batch(kl: str) -> None:
    """NeMo-RL calls the loss once for each packed sequence and adds the metrics."""
    data = data_of()
    logp = data["prev_logprobs"][:, 1:] + 0.2
    tokens, loss = data["token_mask"][:, 1:].sum(), loss_of(kl=kl, reference_kl=KL)
    _, whole = call(loss, data, logp)
    summed: dict[str, Any] = {}
    for row in range(2):
        part = {name: value[row : row + 1] for name, value in data.items()}
        _, metrics = loss(logp[row : row + 1], part, torch.tensor(2.0), tokens)
        for name, value in metrics.items():
            summed[name] = summed.get(name, 0) + value
    ranges = {name for name in whole if name.startswith("probs_ratio") and name.endswith(("_min", "_max"))}
    for name in whole.keys() - ranges:
        assert summed[name] == pytest.approx(whole[name], abs=1e-6), name


def one_token(advantage: float, second: float) -> dict[str, Tensor]:
    """A response of one token, whose ratio is 1.5 under `LOGP`."""
    column = torch.tensor([[0.0, 0.0, 1.0]])
    return data_of(
        1, 3, token_mask=torch.tensor([[0, 0, 1]]), advantages=advantage * column, prev_logprobs=torch.zeros(1, 3),
        generation_logprobs=torch.full((1, 3), math.log(0.5)), **{OPD_COLUMN: second * column},
    )  # fmt: skip


LOGP = torch.tensor([[0.0, math.log(1.5)]])


@pytest.mark.parametrize(
    ("keys", "first", "second"),
    [
        ({}, -1.2, 1.5),  # -min(1.5, 1.2), and -min(1.5 * -1, 1.2 * -1)
        ({"ratio_clip_c": 1.4}, -1.2, 1.4),  # dual clip: at most 1.4
        ({"use_importance_sampling_correction": True}, -2.4, 3.0),  # pi_old / pi_generation = 2
        ({"ratio_clip_max": 0.6}, -1.5, 1.5),
    ],
)
def test_every_key_of_the_loss_reaches_both_surrogates(keys: dict[str, Any], first: float, second: float) -> None:
    """Each clipped on its own; the second counts twice, and the reference KL once."""
    total, metrics = call(loss_of(opd_coef=2.0, **keys), one_token(1.0, -1.0), LOGP)
    assert float(total) == pytest.approx(first + 2 * second, abs=1e-5)
    assert metrics["loss"] == pytest.approx(first + 2 * second, abs=1e-5)
    alone, _ = call(loss_of(kl="recipe", reference_kl=KL, **keys), one_token(1.0, -1.0), LOGP)
    both, _ = call(loss_of(kl="recipe", reference_kl=KL, opd_coef=2.0, **keys), one_token(1.0, -1.0), LOGP)
    assert float(both) - float(alone) == pytest.approx(2 * second, abs=1e-5)


@pytest.mark.parametrize(
    ("keys", "first", "second"),
    [
        ({}, -1.2, 3.0),  # the ratio is to the policy that sampled: 3; -min(3, 1.2), and -min(3 * -1, 1.2 * -1)
        ({"ratio_clip_c": 1.4}, -1.2, 1.4),
        ({"use_importance_sampling_correction": True}, -1.2, 3.0),  # the ratio counts once
        ({"ratio_clip_max": 2.5}, -3.0, 3.0),
    ],
)
def test_with_a_lag_the_ratio_of_both_surrogates_is_to_the_policy_that_sampled(
    keys: dict[str, Any], first: float, second: float
) -> None:
    total, metrics = call(loss_of(opd_coef=2.0, lag=1, **keys), one_token(1.0, -1.0), LOGP)
    assert float(total) == pytest.approx(first + 2 * second, abs=1e-5)
    assert metrics[f"{PREFIX}behind_kl"] == pytest.approx(2 - 1 - math.log(2), abs=1e-6)  # pi / mu = 2
    assert metrics["probs_ratio_max"] == pytest.approx(1.5, abs=1e-6)  # to the policy before the update
    assert metrics[f"{PREFIX}first_ratio_mean"] == pytest.approx(0.5, abs=1e-6)
    assert metrics[f"{PREFIX}clip_high_share"] == (1.0 if keys.get("ratio_clip_max", 0.2) < 2 else 0.0)
    assert metrics["gen_kl_error"] > 0


@pytest.mark.parametrize("kl", ["paper", "recipe"])
def test_at_age_0_the_bits_are_those_of_the_synchronous_loop(kl: str) -> None:
    data = data_of()
    logp = (data["prev_logprobs"][:, 1:] + 0.3).requires_grad_()
    keys = {"kl": kl, "reference_kl": KL, "use_importance_sampling_correction": True}
    (one, of_one), (other, of_other) = (call(loss_of(lag=lag, **keys), data, logp) for lag in (None, 0))
    assert torch.equal(one, other)
    assert of_one == of_other
    gradients = [torch.autograd.grad(each, logp, retain_graph=True)[0] for each in (one, other)]
    assert torch.equal(*gradients)


def test_the_error_of_the_first_ratio_is_of_the_first_optimizer_step() -> None:
    """NeMo-RL keeps the smallest and the largest ratio of each micro-batch; one without a token has none."""
    data = data_of()
    logp = data["prev_logprobs"][:, 1:] + 0.2
    later = data | {FIRST_STEP_COLUMN: torch.zeros(2), "prev_logprobs": data["prev_logprobs"] - 1.0}
    empty = data | {"token_mask": torch.zeros_like(data["token_mask"])}
    found = [loss_of()(logp, each, torch.tensor(2.0), torch.tensor(5.0))[1] for each in (data, later, empty)]
    metrics = {name: [one[name] for one in found] for name in (FIRST_STEP, "probs_ratio_min", "probs_ratio_max")}
    assert first_ratio_error(metrics) == pytest.approx(math.exp(0.2) - 1, abs=1e-6)
    assert max(metrics["probs_ratio_max"]) > 3
    assert found[1][f"{PREFIX}first_ratio_mean"] == 0.0


def test_a_ratio_that_is_no_number_survives_the_summing_of_micro_batches() -> None:
    data = data_of()
    logp = data["prev_logprobs"][:, 1:] + 0.2
    logp[0, 2] = math.nan
    _, metrics = call(loss_of(), data, logp)
    assert math.isnan(metrics[f"{PREFIX}first_ratio_mean"] + 0.1)
