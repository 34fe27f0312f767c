"""The clipped loss: gradient, clipping, the two surrogates, micro-batches, the reference KL."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_uecr.core.loss import PolicyLoss, policy_loss
from nemo_uecr.errors import ScoreError

B, T = 6, 9


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


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
    return leaf.grad


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


def test_only_the_total_has_a_gradient_and_only_for_the_policy() -> None:
    t = tensors(4)
    leaves = {name: t[name].clone().requires_grad_() for name in ("logp", "old_logp", "ref_logp", "advantage")}
    out = loss_of(t | leaves)
    out.total.backward()
    assert [name for name, leaf in leaves.items() if leaf.grad is not None] == ["logp"]
    assert not any(kept.requires_grad for kept in (out.surrogate, out.reference_kl, out.ratio))


def test_two_surrogates_are_not_one_of_the_sum_off_policy() -> None:
    # r = 2, A = 1 and -1, bounds 0.2: -min(2, 1.2) = -1.2 and -min(-2, -1.2) = 2; one surrogate of 0 is 0.
    one = torch.ones(1, 1, dtype=torch.float64)
    t = {"logp": one * 0, "old_logp": -one * math.log(2), "mask": one > 0, "ref_logp": None}
    plain = {"kl_coef": 0.0, "clip": (0.2, 0.2)}
    two = loss_of(t, advantage=one, second=(-one, 1.0), **plain).total
    half = loss_of(t, advantage=one, second=(-one, 0.5), **plain).total
    summed = loss_of(t, advantage=one - one, **plain).total
    assert two.item() == pytest.approx(-1.2 + 2.0, abs=1e-15)
    assert half.item() == pytest.approx(-1.2 + 0.5 * 2.0, abs=1e-15)
    assert summed.item() == 0.0


def test_the_gradient_of_the_kl_is_not_clamped() -> None:
    # d k3 / d logp = 1 - e^u, unbounded: at u = 12 it is 1 - e^12 (a clamp of the estimate would cut it off).
    one = torch.ones(1, 1, dtype=torch.float64)
    far = {"logp": -13.0 * one, "old_logp": -13.0 * one, "ref_logp": -one, "mask": one > 0}
    got = gradient(far | {"advantage": 0.0 * one}, kl_coef=1.0)
    assert got.item() == pytest.approx(1.0 - math.exp(12.0), rel=1e-12)


def test_a_coefficient_asks_for_the_reference() -> None:
    measured, weighed = (loss_of(tensors(0), kl_coef=coefficient) for coefficient in (0.0, 1.0))
    assert measured.total == measured.surrogate
    assert measured.reference_kl == weighed.reference_kl > 0
    with pytest.raises(ScoreError, match=r"kl_coef is 0\.05 without ref_logp"):
        loss_of(tensors(0), ref_logp=None)
    with pytest.raises(ScoreError, match=r"kl_coef is -0\.1; expected 0 or more"):
        loss_of(tensors(0), kl_coef=-0.1)


def test_policy_loss_of_two_tokens() -> None:
    # Ratios e^0 = 1 and 2, advantages 1 and 1, bounds 0.2: surrogate -(1 + 1.2) = -2.2. One more token masked out.
    # Reference at logp + (0, ln2): k3 = 0 and 1 - ln2. Denominator 4, beta 0.1.
    logp = f64(-1.0, -1.0, math.nan)
    old = f64(-1.0, -1.0 - math.log(2.0), math.nan)
    ref = f64(-1.0, -1.0 + math.log(2.0), math.nan)
    out = policy_loss(
        logp, old, f64(1, 1, math.nan), torch.tensor([True, True, False]), denominator=4.0, ref_logp=ref, kl_coef=0.1
    )
    k3 = (1.0 - math.log(2.0)) / 4.0
    assert out.surrogate.item() == pytest.approx(-0.55, abs=1e-15)
    assert out.reference_kl.item() == pytest.approx(k3, abs=1e-15)
    assert out.total.item() == pytest.approx(-0.55 + 0.1 * k3, abs=1e-15)
    torch.testing.assert_close(out.ratio, f64(1, 2, 1), rtol=0, atol=1e-15)
