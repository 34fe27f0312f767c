"""The actor loss: clipped surrogate plus low-variance reference KL, over an explicit global denominator.

Shape legend: B = responses, T = tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.core.record import check_scores
from nemo_uecr.errors import ScoreError


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of one micro-batch, already divided by the optimizer step's token count; all but the total detached."""

    #: float64 scalar with gradient; micro-batch values add up to the loss of the whole optimizer step.
    total: Tensor
    #: Scalar, the clipped surrogates' share.
    surrogate: Tensor
    #: Scalar, the KL estimate's share before its coefficient.
    reference_kl: Tensor
    #: [..., T] pi_theta / pi_old at the rollout temperature, 1 where the mask is False.
    ratio: Tensor


def importance_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """``r = exp(log pi_theta - log pi_old)`` at T_r; exactly 1 where the mask is False."""
    return torch.where(mask_BT, logp_BT - old_logp_BT, 0.0).exp()


def clipped_surrogate(
    ratio_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """Token-wise ``-min(r A, clip(r, 1 - low, 1 + high) A)``, 0 where the mask is False; [B, T] (eq:policy-loss).

    The advantage is a constant: no gradient flows into it.
    """
    advantage_BT = torch.where(mask_BT, advantage_BT.detach(), 0.0)
    clipped_BT = ratio_BT.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)


def low_variance_kl(logp_BT: Tensor, ref_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Token-wise k3 estimate ``exp(u) - u - 1`` with ``u = log pi_ref - log pi_theta``, nats (eq:final-objective).

    Its plain gradient, no clamp; at the rollout temperature like the ratio.
    """
    log_ratio_BT = torch.where(mask_BT, ref_logp_BT - logp_BT, 0.0)
    return log_ratio_BT.exp() - log_ratio_BT - 1.0


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    denominator: float | None = None,
    clip: tuple[float, float] = (0.2, 0.2),
    ref_logp: Tensor | None = None,
    kl_coef: float = 0.0,
    second: tuple[Tensor, float] | None = None,
) -> PolicyLoss:
    """``(PG(A) + beta_ref KL3) / denominator`` for one micro-batch, or ``(PG(A) + coef PG(A_2) + ...)``.

    Args:
        logp: [..., T] log pi_theta at the rollout temperature T_r, nats, with gradient.
        old_logp: [..., T] log pi_old at T_r, nats.
        advantage: [..., T] token advantages.
        mask: [..., T] bool or integer, the tokens in the loss: the sampled ones, or ``Advantages.loss_mask_BT``.
        denominator: tokens in the loss of the whole optimizer step on all ranks (token mean); by default those of
            this call, where it is the whole step; without any the loss is 0.
        clip: lower and upper clip bound, epsilon_l and epsilon_h.
        ref_logp: [..., T] reference policy at T_r, which ``kl_coef`` asks for; at 0 its KL is measured alone.
        kl_coef: beta_ref. The KL enters here once and no reward.
        second: token advantages and coefficient of a second clipped surrogate.

    Raises:
        ScoreError: If shapes or types differ, the denominator is not positive, a clip bound or ``kl_coef`` cannot be,
            or the reference is missing. A number that is not finite makes the total so: looking for it would wait for
            a GPU.

    References:
        eq:policy-loss, eq:final-objective.
    """
    other = {"old_logp": old_logp, "advantage": advantage, "mask": mask, "ref_logp": ref_logp}
    for name, each in (other | {"second": second[0]} if second else other).items():
        if each is not None and each.shape != logp.shape:
            raise ScoreError(f"{name} has shape {list(each.shape)}; expected {list(logp.shape)}, the shape of logp")
    mask = check_scores(mask, logp=logp, old_logp=old_logp, ref_logp=ref_logp)
    if denominator is None:
        denominator = max(float(mask.sum()), 1.0)
    if denominator <= 0:
        raise ScoreError(
            f"the loss denominator is {denominator}; expected the optimizer step's count of tokens in the loss"
        )
    if not (0 <= clip[0] < 1 and clip[1] >= 0):
        raise ScoreError(f"clip is {clip}; expected distances from 1, the lower below 1: (0.2, 0.2)")
    if kl_coef < 0:
        raise ScoreError(f"kl_coef is {kl_coef}; expected 0 or more")
    if ref_logp is None and kl_coef != 0:
        raise ScoreError(f"kl_coef is {kl_coef} without ref_logp; expected the reference policy's log-probabilities")
    ratio = importance_ratio(logp, old_logp.detach(), mask)
    surrogate = torch.zeros((), dtype=torch.float64, device=logp.device)
    for each, coefficient in ((advantage, 1.0), *((second,) if second else ())):
        tokens = clipped_surrogate(ratio, each, mask, clip_low=clip[0], clip_high=clip[1])
        surrogate = surrogate + coefficient * tokens.sum(dtype=torch.float64) / denominator
    kl = torch.zeros_like(surrogate)
    if ref_logp is not None:
        kl = low_variance_kl(logp, ref_logp.detach(), mask).sum(dtype=torch.float64) / denominator
    return PolicyLoss(surrogate + kl_coef * kl, surrogate.detach(), kl.detach(), ratio.detach())
