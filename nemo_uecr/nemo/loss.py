"""The loss that NeMo-RL's workers call: `core`'s, with the columns and metric names that NeMo-RL's loop reads.

Two surrogates: every method trains on ``advantages``; some have a second one, whose advantages come in a column of ours
and are clipped on their own.

Shape legend: B = responses of a micro-batch, S = tokens of prompt and response; the loss sees S - 1 predictions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nemo_uecr.core.loss import PolicyLoss, policy_loss
from nemo_uecr.nemo import upstream

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import NemoConfig

#: Columns that the policy adds to the training batch.
OPD_COLUMN = "uecr_opd_advantages"
FIRST_STEP_COLUMN = "uecr_first_step"
#: Prefix of metrics that are token sums over the whole optimizer step, already divided by its token count.
PREFIX = "uecr/"


class MaxReducedMetric(float):
    """A float that adds up to the maximum.

    NeMo-RL adds every metric over the sequences of a packed micro-batch, starting from 0, except a fixed few.
    """

    def __add__(self, other: float) -> MaxReducedMetric:
        """The larger of the two; NaN where either is, which Python's maximum would lose behind a number."""
        values = float(self), float(other)
        return MaxReducedMetric(math.nan if any(map(math.isnan, values)) else max(values))

    __radd__ = __add__


def predicting(column_BS: Tensor) -> Tensor:
    """[B, S - 1] a stored column beside the logits that predict its tokens."""
    return column_BS[:, 1:]


class UecrLoss:
    """Token-mean clipped surrogates plus the reference KL once (eq:policy-loss, eq:final-objective).

    ``(sum_t [PG(A) + c PG(A_opd)] + beta_ref sum_t KL3) / N``, N the sampled tokens of the optimizer step on all ranks.
    """

    def __init__(self, config: NemoConfig, native: Any) -> None:
        """Fix the objective; ``native`` is NeMo-RL's configuration of the run, with the settings of its own loss."""
        #: Read by NeMo-RL: whether to hand over unfiltered log-probabilities beside filtered ones.
        self.reference_policy_kl_penalty = config.loss.reference_kl
        self._clip = config.loss.clip_low, config.loss.clip_high
        self._opd_coef = config.method.opd_coef  # None for a method without a second surrogate
        self._far = config.tolerances.first_ratio_p99
        theirs = config.conventions.kl == "nemo_rl"
        self._native = upstream.native("ClippedPGLossFn")(native.loss_fn) if theirs else None

    @property
    def loss_type(self) -> Any:
        """NeMo-RL's marker of how the loss is averaged."""
        return upstream.native("LossType").TOKEN_LEVEL

    @property
    def input_type(self) -> Any:
        """NeMo-RL's marker of what the loss reads of a forward pass."""
        return upstream.native("LossInputType").LOGPROB

    def __call__(
        self, next_token_logprobs: Tensor, data: Any, global_valid_seqs: Tensor, global_valid_toks: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss of a micro-batch and its metrics.

        Args:
            next_token_logprobs: [B, S - 1] log pi_theta at T_r with gradient, nats.
            data: the micro-batch's columns.
            global_valid_seqs: responses in the loss of the optimizer step on all ranks.
            global_valid_toks: tokens in the loss of the optimizer step on all ranks.
        """
        mask = predicting(data["token_mask"] * data["sample_mask"].unsqueeze(1)).bool()
        old_logp, advantage = predicting(data["prev_logprobs"]), predicting(data["advantages"])
        own = functools.partial(policy_loss, denominator=float(global_valid_toks), clip=self._clip)
        second = None if self._opd_coef is None else (predicting(data[OPD_COLUMN]), self._opd_coef)
        with_kl = self.reference_policy_kl_penalty > 0 and self._native is None
        loss = own(
            next_token_logprobs,
            old_logp,
            advantage,
            mask,
            ref_logp=predicting(data["reference_policy_logprobs"]) if with_kl else None,
            kl_coef=self.reference_policy_kl_penalty if with_kl else 0.0,
            second=second,
        )
        metrics = self._metrics(loss, data, mask, float(global_valid_toks))
        if self._native is None:
            return loss.total, metrics
        total, native_metrics = self._native(
            next_token_logprobs=next_token_logprobs,
            data=data,
            global_valid_seqs=global_valid_seqs,
            global_valid_toks=global_valid_toks,
        )
        if second is not None:  # NeMo-RL's own loss knows the first alone
            total = total + second[1] * own(next_token_logprobs, old_logp, second[0], mask).total
        return total, metrics | native_metrics | {"loss": float(total.detach())}

    def _metrics(self, loss: PolicyLoss, data: Mapping[str, Tensor], mask: Tensor, tokens: float) -> dict[str, float]:
        low, high = 1.0 - self._clip[0], 1.0 + self._clip[1]
        ratio = loss.ratio.double()
        clamped = ratio.clamp(low, high)
        off_first = torch.where((data[FIRST_STEP_COLUMN] > 0).unsqueeze(1), (ratio - 1.0).abs(), 0.0)
        # How far the generator's log-probabilities are from the old policy's; both at T_r.
        u = torch.where(mask, predicting(data["prev_logprobs"]) - predicting(data["generation_logprobs"]), 0.0)

        def mean(value: Tensor) -> float:
            return float(value.double().masked_fill(~mask, 0.0).sum()) / tokens

        return {
            "loss": float(loss.total.detach()),
            "num_valid_samples": float((data["sample_mask"] > 0).sum()),
            "probs_ratio": mean(ratio),
            "probs_ratio_clamped": mean(clamped),
            **_range("probs_ratio", ratio[mask]),
            **_range("probs_ratio_clamped", clamped[mask]),
            "token_mult_prob_error": mean(u.abs().exp()),
            "gen_kl_error": mean(u.exp() - u - 1.0),
            "policy_kl_error": mean((-u).exp() + u - 1.0),
            "sampling_importance_ratio": mean(u.exp()),
            f"{PREFIX}pg_loss": float(loss.surrogate),
            f"{PREFIX}ref_kl": float(loss.reference_kl),
            f"{PREFIX}clip_low_share": mean(ratio < low),
            f"{PREFIX}clip_high_share": mean(ratio > high),
            f"{PREFIX}approx_kl": mean(ratio - 1.0 - ratio.log()),
            f"{PREFIX}first_ratio_error_max": MaxReducedMetric(off_first.max()),
            f"{PREFIX}first_ratio_mean": mean(off_first),
            f"{PREFIX}first_ratio_far_share": mean(~(off_first <= self._far)),
            f"{PREFIX}trained_tokens": float(mask.sum()),
        }


def _range(name: str, values: Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {f"{name}_min": float("inf"), f"{name}_max": float("-inf")}
    return {f"{name}_min": float(values.min()), f"{name}_max": float(values.max())}
