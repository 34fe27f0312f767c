"""The clipped loss: gradient, clipping, the two surrogates, micro-batches, the reference KL."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_uecr.core.loss import PolicyLoss, importance_ratio, low_variance_kl, policy_loss
from nemo_uecr.core.methods import METHODS
from nemo_uecr.errors import ScoreError
from tests.core import reference
from tests.core.batches import SETTINGS, mixed_responses, padded, random_responses

B, T = 6, 9


def tensors(seed: int, spread: float = 0.5) -> dict[str, Any]:
    """A random micro-batch whose ratios lie on both sides of the clip bounds; NaN where the mask is False."""
    g = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(B, T, generator=g, dtype=torch.float64)

    mask = torch.rand(B, T, generator=g) < 0.7
    logp = -normal().abs()
    fields = {
        "logp": logp,
        "old_logp": logp + spread * normal(),
        "ref_logp": logp + 0.4 * normal(),
        "advantage": normal(),
        "opd": normal(),
    }
    return {k: v.masked_fill(~mask, math.nan) for k, v in fields.items()} | {"mask": mask}


def loss_of(t: dict[str, Any], **changes: Any) -> PolicyLoss:
    arguments: dict[str, Any] = {
        "logp": t["logp"],
        "old_logp": t["old_logp"],
        "advantage": t.get("advantage"),
        "mask": t["mask"],
        "denominator": float(t["mask"].sum()),
        "clip": (0.2, 0.3),
        "ref_logp": t["ref_logp"],
        "kl_coef": 0.05,
    }
    return policy_loss(**(arguments | changes))


def gradient(t: dict[str, Any], **changes: Any) -> Tensor:
    leaf = t["logp"].clone().requires_grad_()
    loss_of(t | {"logp": leaf}, **changes).total.backward()
    assert leaf.grad is not None
    return leaf.grad


def test_value_against_the_reference() -> None:
    t = tensors(0)
    surrogate, kl, tokens = 0.0, 0.0, 0
    for i, j in t["mask"].nonzero().tolist():
        logp, old, ref, a = (float(t[k][i, j]) for k in ("logp", "old_logp", "ref_logp", "advantage"))
        surrogate += reference.clipped_surrogate(math.exp(logp - old), a, 0.2, 0.3)
        kl += reference.low_variance_kl(logp, ref)
        tokens += 1
    out = loss_of(t)
    assert out.surrogate.item() == pytest.approx(surrogate / tokens, abs=1e-13)
    assert out.reference_kl.item() == pytest.approx(kl / tokens, abs=1e-13)
    assert out.total.item() == pytest.approx((surrogate + 0.05 * kl) / tokens, abs=1e-13)


def test_gradient_by_hand() -> None:
    # dL/dlogp = -(r A) / N where the unclipped branch is active, 0 where clipped; plus beta (1 - e^u) / N.
    t = tensors(2)
    ratio = (t["logp"] - t["old_logp"]).exp()
    a = t["advantage"]
    clipped = ((a > 0) & (ratio > 1.3)) | ((a < 0) & (ratio < 0.8))
    kl = 0.05 * (1.0 - (t["ref_logp"] - t["logp"]).exp())
    expected = torch.where(clipped, 0.0, -ratio * a) + kl
    expected = torch.where(t["mask"], expected, 0.0) / float(t["mask"].sum())
    assert bool((clipped & t["mask"]).any())
    assert bool((~clipped & t["mask"]).any())
    torch.testing.assert_close(gradient(t), expected, rtol=1e-12, atol=1e-15)


def test_masked_out_values_never_matter() -> None:
    t = tensors(3)
    grad = gradient(t)
    assert bool(grad.isfinite().all())
    assert bool((grad[~t["mask"]] == 0).all())
    for junk in (math.inf, -math.inf, 1e30, 0.0):
        other = {k: v if k == "mask" else torch.where(t["mask"], v, junk) for k, v in t.items()}
        assert torch.equal(loss_of(other).total, loss_of(t).total)
        assert torch.equal(gradient(other), grad)


def test_what_is_only_logged_comes_back_detached() -> None:
    t = tensors(4)
    a = t["advantage"].clone().requires_grad_()
    out = loss_of(t | {"logp": t["logp"].clone().requires_grad_()}, advantage=a)
    out.total.backward()
    assert a.grad is None
    assert not any(kept.requires_grad for kept in (out.surrogate, out.reference_kl, out.ratio))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_returns_detached_tensors(name: str) -> None:
    batch = padded(random_responses(4))
    scores = [s for s in (batch.old_logp_BT, batch.teacher_logp_BT, batch.teacher_entropy_BT) if s is not None]
    for tensor in scores:
        tensor.requires_grad_()
    got = METHODS[name].compute(batch, SETTINGS, detail=True)
    assert not any(t.requires_grad for t in got.named_tensors().values())


def test_two_surrogates_are_not_one_of_the_sum_off_policy() -> None:
    # r = 2, A = 1 and -1, bounds 0.2: -min(2, 1.2) - min(-2, -1.2) = -1.2 + 2 = 0.8; one surrogate of 0 is 0.
    one = torch.ones(1, 1, dtype=torch.float64)
    t = {"logp": one * 0, "old_logp": -one * math.log(2), "mask": one > 0, "ref_logp": None}
    plain = {"kl_coef": 0.0, "clip": (0.2, 0.2)}
    two = loss_of(t, advantage=one, second=(-one, 1.0), **plain).total
    summed = loss_of(t, advantage=one - one, **plain).total
    assert two.item() == pytest.approx(0.8, abs=1e-15)
    assert summed.item() == 0.0


def test_two_surrogates_equal_one_of_the_sum_inside_the_clip() -> None:
    t = tensors(5, spread=0.02)
    for on_policy in (True, False):
        u = t | ({"old_logp": t["logp"].clone()} if on_policy else {})
        two = {"advantage": u["advantage"], "second": (u["opd"], 1.0)}
        one = {"advantage": u["advantage"] + u["opd"]}
        torch.testing.assert_close(loss_of(u, **two).total, loss_of(u, **one).total, rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(gradient(u, **two), gradient(u, **one), rtol=1e-12, atol=1e-15)


def test_the_second_surrogate_has_its_coefficient() -> None:
    t = tensors(6)
    first = loss_of(t, ref_logp=None, kl_coef=0.0).total
    second = loss_of(t, advantage=t["opd"], ref_logp=None, kl_coef=0.0).total
    both = loss_of(t, second=(t["opd"], 0.3), ref_logp=None, kl_coef=0.0).total
    torch.testing.assert_close(both, first + 0.3 * second, rtol=1e-13, atol=1e-15)


def test_micro_batches_add_up() -> None:
    t = tensors(7)
    denominator = float(t["mask"].sum())
    total, grads = 0.0, []
    for rows in torch.arange(B).split([1, 3, 2]):
        piece = {k: v[rows] for k, v in t.items()}
        total += loss_of(piece, denominator=denominator).total.item()
        grads.append(gradient(piece, denominator=denominator))
    assert total == pytest.approx(loss_of(t).total.item(), abs=1e-12)
    torch.testing.assert_close(torch.cat(grads), gradient(t), rtol=0, atol=1e-12)


def test_token_mean_not_mean_of_response_means() -> None:
    # 1 token of advantage 3 and 3 tokens of advantage -1, on policy: -(3 - 3)/4 = 0; the mean of means would be -1.
    mask = torch.tensor([[True, False, False], [True, True, True]])
    a = torch.tensor([[3.0, 0, 0], [-1.0, -1.0, -1.0]], dtype=torch.float64)
    logp = torch.full((2, 3), -1.0, dtype=torch.float64)
    t = {"logp": logp, "old_logp": logp, "advantage": a, "mask": mask, "ref_logp": None}
    assert loss_of(t, kl_coef=0.0).total.item() == 0.0


def test_kl_enters_once_with_its_plain_gradient() -> None:
    t = tensors(8)
    without = loss_of(t, ref_logp=None, kl_coef=0.0).total
    kl = low_variance_kl(t["logp"], t["ref_logp"], t["mask"]).sum() / float(t["mask"].sum())
    torch.testing.assert_close(loss_of(t, kl_coef=0.7).total, without + 0.7 * kl, rtol=1e-13, atol=1e-15)
    # d k3 / d logp = 1 - e^u, unbounded: at u = 12 it is 1 - e^12 (a clamp of the estimate would cut it off).
    one = torch.ones(1, 1, dtype=torch.float64)
    far = {"logp": -13.0 * one, "old_logp": -13.0 * one, "ref_logp": -one, "mask": one > 0}
    got = gradient(far | {"advantage": 0.0 * one}, kl_coef=1.0)
    assert got.item() == pytest.approx(1.0 - math.exp(12.0), rel=1e-12)


def test_the_ratio_is_exactly_one_on_policy() -> None:
    t = tensors(10)
    ratio = importance_ratio(t["logp"].float(), t["logp"].float(), t["mask"])
    assert torch.equal(ratio, torch.ones_like(ratio))


def test_denominator_must_be_positive() -> None:
    with pytest.raises(ScoreError, match="denominator"):
        loss_of(tensors(0), denominator=0.0)


def test_reference_and_coefficient_go_together() -> None:
    with pytest.raises(ScoreError, match="kl_coef"):
        loss_of(tensors(0), kl_coef=0.0)
    with pytest.raises(ScoreError, match="kl_coef"):
        loss_of(tensors(0), ref_logp=None)


class TinyPolicy:
    """A softmax over 5 tokens at each place of the batch: one free logit vector a place."""

    def __init__(self, batch_shape: tuple[int, int]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.randn(*batch_shape, 5, generator=generator, dtype=torch.float64)

    def logp(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(dim=-1)[..., 2]

    def after_a_step(self, advantage: Tensor, mask: Tensor) -> Tensor:
        """log-probability of the sampled token after one gradient step."""
        logits = self.logits.clone().requires_grad_()
        logp = self.logp(logits)
        out = policy_loss(
            logp,
            logp.detach(),
            advantage,
            mask,
        )
        out.total.backward()
        assert logits.grad is not None
        return self.logp((logits - 0.1 * logits.grad).detach())


@pytest.mark.parametrize("name", ["pg_opd", "puu", "uecr", "atod"])
@pytest.mark.parametrize("row", range(2))
def test_raising_the_teachers_probability_raises_the_students(name: str, row: int) -> None:
    """The token the teacher likes better gains more probability in the step, in right and wrong responses alike."""
    batch = padded(mixed_responses(21, (4,)))
    assert batch.teacher_logp_BT is not None
    column = int(batch.mask_BT[row].nonzero()[-1])
    policy = TinyPolicy(tuple(batch.mask_BT.shape))
    after = {}
    for raise_by in (0.0, 0.5):
        teacher = batch.teacher_logp_BT.clone()
        teacher[row, column] = batch.old_logp_BT[row, column] + raise_by
        advantage = METHODS[name].compute(replace(batch, teacher_logp_BT=teacher), SETTINGS).advantage_BT
        after[raise_by] = policy.after_a_step(advantage, batch.mask_BT)[row, column].item()
    assert after[0.5] > after[0.0]
