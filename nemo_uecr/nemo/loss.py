"""The loss that NeMo-RL's workers call: `core`'s, with the columns and metric names that NeMo-RL's loop reads.

Shape legend: B = responses of a micro-batch, S = tokens of prompt and response; the loss sees S - 1 predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.core.loss import PolicyLoss, clipped_surrogate, importance_ratio, policy_loss
from nemo_uecr.nemo.context import RunSpec
from nemo_uecr.nemo.errors import ContractError
from nemo_uecr.nemo.extremes import Largest
from nemo_uecr.nemo.shift import at_predicting_position

#: Columns that the policy adds to the training batch.
OPD_COLUMN = "uecr_opd_advantages"
FIRST_STEP_COLUMN = "uecr_first_step"
#: Prefix of metrics that are token sums over the whole optimizer step, already divided by its token count.
PREFIX = "uecr/"


class UecrLoss:
    """Token-mean clipped surrogates plus the reference KL once.

    ``(sum_t [PG(A) + c PG(A_opd)] + beta_ref sum_t KL3) / N``, N the sampled tokens of the optimizer step on all ranks.

    References:
        eq:policy-loss, eq:final-objective.
    """

    def __init__(self, spec: RunSpec, *, loss_type: Any, input_type: Any, native: Any | None) -> None:
        """Fix the objective.

        Args:
            spec: clipping, KL and the second surrogate's coefficient.
            loss_type: NeMo-RL's marker of a token-level loss.
            input_type: NeMo-RL's marker of a loss over log-probabilities.
            native: NeMo-RL's own loss where ``conventions.kl`` asks for its form, else None.
        """
        self.loss_type = loss_type
        self.input_type = input_type
        #: Read by NeMo-RL: whether to hand over unfiltered log-probabilities beside filtered ones.
        self.reference_policy_kl_penalty = spec.kl_coef
        self._clip = {"clip_low": spec.clip_low, "clip_high": spec.clip_high}
        self._opd_coef = spec.settings.opd_coef if "opd_coef" in spec.method.settings else None
        self._native = native

    def __call__(
        self, next_token_logprobs: Tensor, data: Any, global_valid_seqs: Tensor, global_valid_toks: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Loss of a micro-batch and its metrics.

        Args:
            next_token_logprobs: [B, S - 1] log pi_theta at T_r with gradient, nats.
            data: the micro-batch's columns.
            global_valid_seqs: responses in the loss of the optimizer step on all ranks.
            global_valid_toks: tokens in the loss of the optimizer step on all ranks.

        Raises:
            ContractError: the second surrogate's column did not arrive.
        """
        mask = at_predicting_position(data["token_mask"] * data["sample_mask"].unsqueeze(1)).bool()
        loss = self._own(next_token_logprobs, data, mask, float(global_valid_toks))
        metrics = self._metrics(loss, next_token_logprobs, data, mask, float(global_valid_toks))
        if self._native is None:
            return loss.total, metrics
        total, native_metrics = self._native(next_token_logprobs, data, global_valid_seqs, global_valid_toks)
        total = total + self._second(next_token_logprobs, data, mask, float(global_valid_toks))
        return total, metrics | native_metrics | {"loss": float(total.detach())}

    def _surrogates(self, data: Mapping[str, Tensor]) -> tuple[tuple[Tensor, float], ...]:
        first = (at_predicting_position(data["advantages"]), 1.0)
        if self._opd_coef is None:
            return (first,)
        if OPD_COLUMN not in data:
            raise ContractError(
                f"a training batch without the column {OPD_COLUMN}; expected the method's second advantage: NeMo-RL's "
                "data plane drops it, use its synchronous loop"
            )
        return (first, (at_predicting_position(data[OPD_COLUMN]), self._opd_coef))

    def _own(self, logp: Tensor, data: Mapping[str, Tensor], mask: Tensor, tokens: float) -> PolicyLoss:
        with_kl = self.reference_policy_kl_penalty > 0 and self._native is None
        (advantage, _), *second = self._surrogates(data)
        return policy_loss(
            logp,
            at_predicting_position(data["prev_logprobs"]),
            advantage,
            mask,
            denominator=tokens,
            clip=(self._clip["clip_low"], self._clip["clip_high"]),
            ref_logp=at_predicting_position(data["reference_policy_logprobs"]) if with_kl else None,
            kl_coef=self.reference_policy_kl_penalty if with_kl else 0.0,
            second=second[0] if second else None,
        )

    def _second(self, logp: Tensor, data: Mapping[str, Tensor], mask: Tensor, tokens: float) -> Tensor:
        """The surrogates after the first, which NeMo-RL's own loss does not know, without a KL of their own."""
        total = logp.new_zeros(())
        for advantage, coefficient in self._surrogates(data)[1:]:
            ratio = importance_ratio(logp, at_predicting_position(data["prev_logprobs"]), mask)
            total = total + coefficient * clipped_surrogate(ratio, advantage, mask, **self._clip).sum() / tokens
        return total

    def _metrics(
        self, loss: PolicyLoss, logp: Tensor, data: Mapping[str, Tensor], mask: Tensor, tokens: float
    ) -> dict[str, float]:
        ratio = loss.ratio.double()
        clamped = ratio.clamp(1.0 - self._clip["clip_low"], 1.0 + self._clip["clip_high"])

        def share(value: Tensor) -> float:
            return float(value.double().masked_fill(~mask, 0.0).sum()) / tokens

        first = mask & (data[FIRST_STEP_COLUMN] > 0).unsqueeze(1)
        off = (ratio - 1.0).abs()
        return {
            "loss": float(loss.total.detach()),
            "num_valid_samples": float((data["sample_mask"] > 0).sum()),
            "probs_ratio": share(ratio),
            "probs_ratio_clamped": share(clamped),
            **_range("probs_ratio", ratio[mask]),
            **_range("probs_ratio_clamped", clamped[mask]),
            **_generation_gap(data, mask, tokens),
            f"{PREFIX}pg_loss": float(loss.surrogate),
            f"{PREFIX}ref_kl": float(loss.reference_kl),
            f"{PREFIX}clip_low_share": share(ratio < 1.0 - self._clip["clip_low"]),
            f"{PREFIX}clip_high_share": share(ratio > 1.0 + self._clip["clip_high"]),
            f"{PREFIX}approx_kl": share(ratio - 1.0 - ratio.log()),
            f"{PREFIX}first_ratio_error_max": Largest(off[first].max() if bool(first.any()) else 0.0),
            f"{PREFIX}trained_tokens": float(mask.sum()),
        }


def _range(name: str, values: Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {f"{name}_min": float("inf"), f"{name}_max": float("-inf")}
    return {f"{name}_min": float(values.min()), f"{name}_max": float(values.max())}


def _generation_gap(data: Mapping[str, Tensor], mask: Tensor, tokens: float) -> dict[str, float]:
    """How far the generator's log-probabilities are from the old policy's; both at T_r."""
    prev = torch.where(mask, at_predicting_position(data["prev_logprobs"]), 0.0)
    generated = torch.where(mask, at_predicting_position(data["generation_logprobs"]), 0.0)
    u = prev - generated
    return {
        "token_mult_prob_error": float((u.abs().exp() * mask).sum()) / tokens,
        "gen_kl_error": float((u.exp() - u - 1.0).sum()) / tokens,
        "policy_kl_error": float(((-u).exp() + u - 1.0).sum()) / tokens,
        "sampling_importance_ratio": float((u.exp() * mask).sum()) / tokens,
    }
