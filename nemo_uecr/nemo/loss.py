"""The loss that NeMo-RL's workers call: the recipe's own, with a second surrogate and the paper's KL where asked.

Every method trains on the column ``advantages``; some have a second surrogate, whose advantages come in a column of
ours and are clipped on their own. Each surrogate is one call of NeMo-RL's `ClippedPGLossFn`, so that every key of
`loss_fn` (importance correction, dual clip, sequence ratios, sequence mean) reaches both.

Shape legend: B = responses of a micro-batch, S = tokens of prompt and response; the loss sees S - 1 predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.core.loss import importance_ratio, low_variance_kl
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.recipe import Settings

#: Columns that the policy adds to the training batch.
OPD_COLUMN = "uecr_opd_advantages"
FIRST_STEP_COLUMN = "uecr_first_step"
#: Prefix of metrics that are token sums over the whole optimizer step, already divided by its token count.
PREFIX = "uecr/"
#: 1 for a micro-batch of the first optimizer step, beside which NeMo-RL keeps the micro-batch's largest ratio.
FIRST_STEP = f"{PREFIX}first_step_tokens"
#: NeMo-RL's metrics of the policy before the update: against the one that generated, and against the one in training.
OF_THE_OLD_POLICY = (
    "gen_kl_error", "policy_kl_error", "js_divergence_error", "token_mult_prob_error", "sampling_importance_ratio",
    "probs_ratio", "probs_ratio_clamped", "probs_ratio_min", "probs_ratio_max", "probs_ratio_clamped_min",
    "probs_ratio_clamped_max",
)  # fmt: skip


def predicting(column_BS: Tensor) -> Tensor:
    """[B, S - 1] a stored column beside the logits that predict its tokens."""
    return column_BS[:, 1:]


class UecrLoss:
    """``PG(A) + c PG(A_opd) + beta KL``, each PG and with ``uecr.kl=recipe`` the KL by NeMo-RL (eq:final-objective).

    With ``uecr.kl=paper`` the KL is the plain k3 estimate, a mean over the optimizer step's tokens, without NeMo-RL's
    score-function factor and clamps.

    In the asynchronous loop older policies sampled the responses. There the ratio is pi_theta / mu, mu the recorded
    probability of each token under the policy that sampled it, so that the clip acts on how far the update is from
    what was sampled; the advantages come from the policy that is about to be updated (not in the paper, whose policies
    are one). An importance weight between the two would count the same ratio twice: it is 1 then.
    """

    def __init__(self, settings: Settings, loss_fn: Any) -> None:
        """Fix the objective; ``loss_fn`` is the recipe's section of that name."""
        #: Read by NeMo-RL: whether to hand over unfiltered log-probabilities beside filtered ones.
        self.reference_policy_kl_penalty = loss_fn.reference_policy_kl_penalty
        self._clip = loss_fn.ratio_clip_min, loss_fn.ratio_clip_max
        self._far = settings.tolerances.first_ratio_p99
        self._opd_coef = settings.method.opd_coef  # None for a method without a second surrogate
        self._lags = bool(settings.lag)
        self._kl_is_ours = settings.kl == "paper" and self.reference_policy_kl_penalty > 0
        native, no_kl = upstream.native("ClippedPGLossFn"), {"reference_policy_kl_penalty": 0.0}
        self._first = native(loss_fn.model_copy(update=no_kl) if self._kl_is_ours else loss_fn)
        alone = no_kl | {"positive_example_nll_weight": 0.0}  # these terms count once
        self._second = None if self._opd_coef is None else native(loss_fn.model_copy(update=alone))
        #: Read by NeMo-RL: how the loss is averaged, and what it reads of a forward pass.
        self.loss_type, self.input_type = self._first.loss_type, self._first.input_type

    def __call__(
        self, next_token_logprobs: Tensor, data: Any, global_valid_seqs: Tensor, global_valid_toks: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """Loss of a micro-batch and its metrics.

        Args:
            next_token_logprobs: [B, S - 1] log pi_theta at T_r with gradient, nats.
            data: the micro-batch's columns.
            global_valid_seqs: responses in the loss of the optimizer step on all ranks.
            global_valid_toks: tokens in the loss of the optimizer step on all ranks.
        """
        counts = {"global_valid_seqs": global_valid_seqs, "global_valid_toks": global_valid_toks}
        sampled = type(data)({**data, "prev_logprobs": data["generation_logprobs"]}) if self._lags else data
        total, native_metrics = self._first(next_token_logprobs=next_token_logprobs, data=sampled, **counts)
        if self._lags:  # the copy has one policy in the places of two
            with torch.no_grad():
                _, told = self._first(next_token_logprobs=next_token_logprobs, data=data, **counts)
            native_metrics = native_metrics | {name: told[name] for name in OF_THE_OLD_POLICY}
        if self._second is not None:
            columns = type(data)({**sampled, "advantages": data[OPD_COLUMN]})
            second, _ = self._second(next_token_logprobs=next_token_logprobs, data=columns, **counts)
            total = total + self._opd_coef * second
        mask = predicting(data["token_mask"] * data["sample_mask"].unsqueeze(1)).bool()
        reference_kl = float(native_metrics["kl_penalty"])
        if self._kl_is_ours:
            unfiltered = data.get("curr_logprobs_unfiltered", next_token_logprobs)
            kl_BS = low_variance_kl(unfiltered, predicting(data["reference_policy_logprobs"]), mask)
            kl = kl_BS.sum() / global_valid_toks
            total, reference_kl = total + self.reference_policy_kl_penalty * kl, float(kl.detach())
        loss = float(total.detach())
        metrics = {
            "loss": loss,
            f"{PREFIX}pg_loss": loss - self.reference_policy_kl_penalty * reference_kl,
            f"{PREFIX}ref_kl": reference_kl,
        }
        return total, native_metrics | metrics | self._ratios(next_token_logprobs, data, mask, float(global_valid_toks))

    def _ratios(self, logp_BS: Tensor, data: Mapping[str, Tensor], mask: Tensor, tokens: float) -> dict[str, float]:
        """The loss's ratio, and that to the policy before the update, which is 1 in the first optimizer step."""
        before = importance_ratio(logp_BS.detach(), predicting(data["prev_logprobs"]), mask).double()
        sampled = data["generation_logprobs" if self._lags else "prev_logprobs"]
        ratio = importance_ratio(logp_BS.detach(), predicting(sampled), mask).double()
        behind = ratio / before  # pi / mu, 1 in the synchronous loop
        first = (data[FIRST_STEP_COLUMN] > 0).unsqueeze(1)
        off_first = torch.where(first, (before - 1.0).abs(), 0.0)

        def mean(value: Tensor) -> float:
            return float(value.double().masked_fill(~mask, 0.0).sum()) / tokens

        return {
            f"{PREFIX}clip_low_share": mean(ratio < 1.0 - self._clip[0]),
            f"{PREFIX}clip_high_share": mean(ratio > 1.0 + self._clip[1]),
            f"{PREFIX}approx_kl": mean(ratio - 1.0 - ratio.log()),
            f"{PREFIX}behind_kl": mean(behind - 1.0 - behind.log()),
            f"{PREFIX}first_ratio_mean": mean(off_first),
            f"{PREFIX}first_ratio_far_share": mean(~(off_first <= self._far)),
            f"{PREFIX}trained_tokens": float(mask.sum()),
            FIRST_STEP: float((mask & first).sum()),
        }


def first_ratio_error(metrics: Mapping[str, list[float]]) -> float:
    """Largest ``|ratio - 1|`` of the first optimizer step: NeMo-RL keeps the ends of each micro-batch's ratios.

    A micro-batch belongs to one optimizer step; one without a token in the loss has no ends.
    """
    ends = zip(metrics[FIRST_STEP], metrics["probs_ratio_min"], metrics["probs_ratio_max"], strict=True)
    return max((max(1.0 - low, high - 1.0) for tokens, low, high in ends if tokens), default=0.0)
