"""The gate on the ratio of a batch's first update, one rule for both back ends: bf16 noise passes, faults do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_uecr.config.schema import BFLOAT16_ON_GPU, LocalTolerancesConfig
from nemo_uecr.errors import InvariantError
from nemo_uecr.local.update import check_ratios
from nemo_uecr.nemo import telemetry, upstream
from nemo_uecr.nemo.loss import FIRST_STEP, FIRST_STEP_COLUMN, UecrLoss
from nemo_uecr.nemo.step import StepContext
from nemo_uecr.steps.metrics import ratio_metrics
from tests.nemo.made_recipe import made_settings

B, T, V = 40, 101, 400
TEMPERATURE = 0.7


def language_logits() -> Tensor:
    """[B, T, V] as a language model's: above 30, four of five tokens all but decided, the others between a few."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    gaps = torch.where(uniform(B, T, 1) < 0.2, -uniform(B, T, 8).log().cumsum(2) * 0.8, 4 + 8 * uniform(B, T, 8))
    logits = torch.randn(B, T, V, generator=generator) * 2.5 - 14
    logits[..., 0], logits[..., 1:8] = 0.0, -gaps[..., :7]
    return logits + 34 + 12 * uniform(B, T, 1)


LOGITS = language_logits()
TOKENS = torch.multinomial(
    (LOGITS / TEMPERATURE).softmax(-1).flatten(0, 1), 1, generator=torch.Generator().manual_seed(1)
)
TOKENS = TOKENS.view(B, T)


def logp(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """In bfloat16, divided there as in NeMo-RL."""
    return (logits.bfloat16() / temperature).float().log_softmax(-1).gather(2, tokens.unsqueeze(2))[..., 0]


def noisy(seed: int, deviation: float = 0.01) -> Tensor:
    return LOGITS + deviation * torch.randn(LOGITS.shape, generator=torch.Generator().manual_seed(seed))


OLD = logp(noisy(2), TOKENS, TEMPERATURE)
OTHER = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(3))
FAULTS = {
    "other weights": logp(noisy(4, 1.0), TOKENS, TEMPERATURE),
    "wrong ids": logp(LOGITS, OTHER, TEMPERATURE),
    "no shift": logp(LOGITS, TOKENS.roll(1, dims=1), TEMPERATURE),
    "another temperature": logp(LOGITS, TOKENS, 1.0),
    "one of fifty lost": torch.where(torch.rand(B, T, generator=torch.Generator().manual_seed(5)) < 0.02, -30.0, OLD),
    "NaN": OLD.index_put((torch.tensor([7]), torch.tensor([70])), torch.tensor(math.nan)),
}


def local(new: Tensor, old: Tensor) -> None:
    """Two optimizer steps, the second of which has moved the policy."""
    first = (new - old).exp()
    place_N2 = torch.cartesian_prod(torch.arange(B), torch.arange(T)).repeat(2, 1)
    ratio_N = torch.cat((first.flatten(), 3 * first.flatten()))
    outcome: Any = SimpleNamespace(first_ratio_N=first.flatten(), ratio_N=ratio_N, before_N=ratio_N, place_N2=place_N2)
    tolerances = LocalTolerancesConfig(**BFLOAT16_ON_GPU)
    far = tolerances.first_ratio_p99
    ratios = outcome.ratio_N, outcome.before_N, outcome.first_ratio_N
    found = ratio_metrics(*ratios, clip_low=0.2, clip_high=0.2, far=far)
    check_ratios(outcome, found, [f"sample {row}" for row in range(B)], tolerances)


class NativeLoss:
    """The part of NeMo-RL's loss that the gate reads: the ends of a micro-batch's ratios."""

    loss_type = input_type = None

    def __init__(self, loss_fn: Any) -> None: ...

    def __call__(self, *, next_token_logprobs: Tensor, data: Any, **counts: Tensor) -> tuple[Tensor, dict[str, float]]:
        ratio = (next_token_logprobs - data["prev_logprobs"][:, 1:]).exp()
        ends = {"probs_ratio_min": float(ratio.min()), "probs_ratio_max": float(ratio.max())}
        return torch.zeros(()), {"kl_penalty": 0.0, "probs_ratio": float(ratio.mean()), **ends}


def nemo_rl(new: Tensor, old: Tensor) -> dict[str, float]:
    """Two optimizer steps of two micro-batches of different size, reduced as NeMo-RL does; the second has moved."""
    settings = made_settings(V, uecr__method={"name": "grpo"}, loss_fn__reference_policy_kl_penalty=0.0)
    loss_fn = SimpleNamespace(reference_policy_kl_penalty=0.0, ratio_clip_min=0.2, ratio_clip_max=0.2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upstream, "native", lambda name: NativeLoss)
        own = UecrLoss(settings, loss_fn)
    found: dict[str, list[float]] = {}
    for first, moved in ((1.0, 0.0), (0.0, 1.0)):
        for rows in (slice(0, 10), slice(10, B)):
            shape = OLD[rows].shape
            zeros = torch.zeros(shape[0], shape[1] + 1)
            mask = torch.ones_like(zeros)
            mask[:, 0] = 0
            data = {
                "token_mask": mask, "sample_mask": torch.ones(shape[0]), "advantages": zeros,
                "prev_logprobs": torch.nn.functional.pad(old[rows], (1, 0)), "generation_logprobs": zeros,
                FIRST_STEP_COLUMN: torch.full((shape[0],), first),
            }  # fmt: skip
            _, metrics = own(new[rows] + moved, data, torch.tensor(B), torch.tensor(B * T))
            for name, value in metrics.items():
                ends = name.endswith(("_min", "_max")) or name == FIRST_STEP
                found.setdefault(name, []).append(value if ends else value / 2)
    context = StepContext(settings, None)
    return telemetry._policy(context, {"all_mb_metrics": found, "grad_norm": torch.ones(2)})


BACK_ENDS = pytest.mark.parametrize("gate", [local, nemo_rl])


@BACK_ENDS
@pytest.mark.parametrize("deviation", [0.0, 0.01, 0.05])
def test_noise_of_bfloat16_passes_and_one_token_among_thousands(gate: Callable[..., Any], deviation: float) -> None:
    """Healthy noise changes a logit by an ulp, 0.25, here and there: |r - 1| up to 0.65."""
    new = logp(noisy(9, deviation), TOKENS, TEMPERATURE)
    off = ((new - OLD).exp() - 1).abs()
    assert float(off.max()) > 0.4
    assert float(off.mean()) < BFLOAT16_ON_GPU["first_ratio"] / 2
    assert float((off > BFLOAT16_ON_GPU["first_ratio_p99"]).double().mean()) < 0.002
    gate(new, OLD)
    gate(OLD, OLD.index_put((torch.tensor([7]), torch.tensor([70])), OLD[7, 70] - 2.0))  # the ratio is 7.4


@BACK_ENDS
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_stop_the_run(gate: Callable[..., Any], fault: str) -> None:
    with pytest.raises(InvariantError, match=r"first update differs from 1 by .*tolerances\.first_ratio=0\.05"):
        gate(FAULTS[fault], OLD)


def test_both_measure_the_first_optimizer_step_alone() -> None:
    """Mean, share and largest of its tokens, whatever the micro-batches' sizes."""
    new = logp(noisy(9, 0.1), TOKENS, TEMPERATURE)
    off = ((new - OLD).exp() - 1).abs().double()
    found = nemo_rl(new, OLD)
    assert found["policy/first_ratio_mean"] == pytest.approx(float(off.mean()), rel=1e-6)
    assert found["policy/first_ratio_far_share"] == pytest.approx(float((off > 0.9).double().mean()), rel=1e-6)
    assert found["policy/first_ratio_error"] == pytest.approx(float(off.max()), rel=1e-6)
