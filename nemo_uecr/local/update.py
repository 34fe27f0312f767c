"""The optimizer steps of one batch: micro-batches accumulate to exactly the loss of the whole mini-batch.

Shape legend: B = responses, T = response tokens, N = trained tokens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.config.schema import Config, TolerancesConfig
from nemo_uecr.core.loss import importance_ratio, policy_loss
from nemo_uecr.core.methods import Advantages
from nemo_uecr.errors import InvariantError, require_extra
from nemo_uecr.generation.decode import to_device
from nemo_uecr.local.memory import recomputing, to_host
from nemo_uecr.local.rollout import StepBatch
from nemo_uecr.local.scores import training_logp
from nemo_uecr.local.token_model import TokenModel
from nemo_uecr.reproducible import derive
from nemo_uecr.scoring.statistics import deferred_checks
from nemo_uecr.steps.metrics import check_first_ratio

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateOutcome:
    """Scalars of each optimizer step, and the ratio of every trained token."""

    loss: list[float]
    surrogate: list[float]
    reference_kl: list[float]
    grad_norm: list[float]
    learning_rate: float
    ratio_N: Tensor
    before_N: Tensor  # pi_theta / pi_old, pi_old the policy before the update: ratio_N where that has sampled
    first_ratio_N: Tensor  # its beginning, from the first optimizer step
    place_N2: Tensor  # response and column of each entry of ratio_N
    optimizer_steps: int


def build_optimizer(model: TokenModel, config: Config) -> torch.optim.Optimizer:
    """AdamW over every parameter that is trained."""
    train = config.train
    options: dict[str, Any] = {"lr": train.learning_rate, "betas": train.betas, "weight_decay": train.weight_decay}
    if train.optimizer == "adamw":
        # Fused on a GPU: one launch for many parameters, and no temporaries of the size of all weights.
        options |= {"fused": True} if config.device != "cpu" and torch.cuda.is_available() else {"foreach": False}
        return torch.optim.AdamW(model.trained, **options)
    require_extra("lowbit")
    if train.optimizer == "adamw8bit":
        from bitsandbytes.optim import AdamW8bit
    else:
        from torchao.optim import AdamW8bit

        log.info("adamw8bit_sr is compiled in its first step, which takes a minute more")
        options["bf16_stochastic_round"] = True
    optimizer: torch.optim.Optimizer = AdamW8bit(model.trained, **options)
    return optimizer


def warmed_rate(config: Config, done: int) -> float:
    """Learning rate of the optimizer step after ``done`` steps: linear warm-up, then constant."""
    return config.train.learning_rate * min(1.0, (done + 1) / max(config.train.warmup_steps, 1))


def update(
    model: TokenModel,
    optimizer: torch.optim.Optimizer,
    batch: StepBatch,
    advantages: Advantages,
    config: Config,
    *,
    steps_done: int,
) -> UpdateOutcome:
    """Take one optimizer step for each mini-batch; ``steps_done`` were taken before this batch.

    A loss or a gradient that is not finite ends the run before its step, a parameter after it.
    """
    loss_mask_BT = advantages.trained(batch.record.mask_BT)
    if config.rollout.overlong_filter:
        loss_mask_BT = loss_mask_BT & ~batch.record.truncated_B.unsqueeze(1)
    # Of each optimizer step: loss, surrogate, reference KL and gradient norm; both ratios [2, N]; their places [N, 2].
    steps: list[tuple[list[float], Tensor, Tensor]] = []
    for minibatch in batch.micro_rows:
        tokens = int(loss_mask_BT[torch.cat(minibatch)].sum())
        if tokens == 0:  # the overlong filter, or the method's mask, left nothing of this mini-batch
            continue
        done = steps_done + len(steps)
        rate = warmed_rate(config, done)
        for group in optimizer.param_groups:
            group["lr"] = torch.full_like(group["lr"], rate) if isinstance(group["lr"], Tensor) else rate
        optimizer.zero_grad(set_to_none=True)
        losses = torch.zeros(3, dtype=torch.float64, device=model.device)
        ratios, places = list[Tensor](), list[Tensor]()  # the ratios on the device until the gradient is whole
        with recomputing(model.recomputed), deferred_checks():
            for rows in minibatch:
                row_N, column_N = loss_mask_BT[rows].nonzero(as_tuple=True)
                if not row_N.numel():
                    continue
                loss_3, ratio_2N = _accumulate(model, batch, advantages, loss_mask_BT, rows, config, tokens)
                losses += loss_3
                ratios.append(ratio_2N)
                places.append(torch.stack((rows[row_N], column_N), dim=1))
        total_norm = torch.nn.utils.clip_grad_norm_(model.trained, config.train.max_grad_norm)
        losses, total_norm, *ratios = to_host([losses, total_norm, *ratios])
        scalars = [*losses.tolist(), float(total_norm)]
        if not (math.isfinite(scalars[0]) and math.isfinite(scalars[-1])):
            raise InvariantError(
                f"loss {scalars[0]} and gradient norm {scalars[-1]} at optimizer step {done + 1}; expected finite "
                "numbers. Lower train.learning_rate or look at the saved batch"
            )
        # Rounding at random draws from the global stream; whatever came before, a resumed run draws the same.
        torch.manual_seed(derive(config.run.seed, "rounding", done))
        optimizer.step()
        steps.append((scalars, torch.cat(ratios, dim=1), torch.cat(places)))
        _check_weights(model, done + 1)
    if not steps:
        raise InvariantError(
            "the batch has no token in the loss; expected some. The method's mask left none, or every response was "
            "truncated and rollout.overlong_filter is on: raise rollout.max_response_tokens"
        )
    columns, ratios_2N, places_N2 = zip(*steps, strict=True)
    ratio_N, before_N = torch.cat(ratios_2N, dim=1)
    loss, surrogate, reference_kl, grad_norm = map(list, zip(*columns, strict=True))
    return UpdateOutcome(
        loss=loss,
        surrogate=surrogate,
        reference_kl=reference_kl,
        grad_norm=grad_norm,
        learning_rate=float(optimizer.param_groups[0]["lr"]),
        ratio_N=ratio_N,
        before_N=before_N,
        first_ratio_N=ratios_2N[0][1],
        place_N2=torch.cat(places_N2),
        optimizer_steps=steps_done + len(steps),
    )


def _check_weights(model: TokenModel, optimizer_step: int) -> None:
    """A finite gradient can still take a weight beyond its type: no checkpoint may hold what comes out of that."""
    # One fused norm settles it in almost every step; only where that overflows is each weight looked at.
    if math.isfinite(float(torch.nn.utils.get_total_norm(model.trained))):
        return
    for name, parameter in model.module.named_parameters():
        if bad := int((~parameter.isfinite()).sum()):
            raise InvariantError(
                f"{bad} of {parameter.numel()} weights of {name} are not finite after optimizer step {optimizer_step}; "
                "expected finite numbers. No checkpoint of them is saved. Lower train.learning_rate or "
                "train.weight_decay; after the first step, look at the student's own weights too"
            )


def _accumulate(
    model: TokenModel,
    batch: StepBatch,
    advantages: Advantages,
    loss_mask_BT: Tensor,
    rows: Tensor,
    config: Config,
    tokens: int,
) -> tuple[Tensor, Tensor]:
    """Loss, surrogate and reference KL [3], and both ratios of each trained token [2, N]; all on the device.

    The loss's ratio is to the policy that sampled. Where that is older than the one that the step updates, it is not
    the paper's: advantages are of the latter, and the ratio to it, 1 before any update, is only checked and told.
    """

    def own(values_BT: Tensor) -> Tensor:
        return to_device(values_BT[rows], model.device)

    reference = batch.record.reference_rollout_logp_BT if config.loss.reference_kl > 0 else None
    second, coefficient = advantages.advantage_opd_BT, config.method.opd_coef
    logp = training_logp(model, batch.sequences.micro_batch(rows), temperature=config.rollout.temperature)
    old, mask = own(batch.record.student.rollout_logp_BT), own(loss_mask_BT)
    older = batch.record.generator_logp_BT if config.rollout.lag else None
    loss = policy_loss(
        logp,
        old if older is None else own(older),
        own(advantages.advantage_BT),
        mask,
        denominator=tokens,
        clip=(config.loss.clip_low, config.loss.clip_high),
        ref_logp=None if reference is None else own(reference),
        kl_coef=config.loss.reference_kl,
        second=None if second is None or coefficient is None else (own(second), coefficient),
    )
    torch.autograd.backward(loss.total)
    before = loss.ratio if older is None else importance_ratio(logp.detach(), old, mask)
    place_N = to_device(loss_mask_BT[rows].flatten().nonzero().squeeze(1), model.device)
    ratio_2N = torch.stack((loss.ratio, before)).flatten(1)[:, place_N]
    return torch.stack((loss.total.detach(), loss.surrogate, loss.reference_kl)).double(), ratio_2N


def check_ratios(
    outcome: UpdateOutcome, metrics: Mapping[str, float], sample_ids: Sequence[str], tolerances: TolerancesConfig
) -> None:
    """Refuse ratios that show a fault: pi_theta / pi_old is 1 before any update, and has a logarithm after one."""

    def at(place: int) -> str:
        row, token = outcome.place_N2[place].tolist()
        return f" at response {row} ({sample_ids[row]}) at token {token}"

    check_first_ratio(metrics, tolerances, at(int((outcome.first_ratio_N - 1.0).abs().argmax())))
    bad = (~outcome.ratio_N.double().log().isfinite()).nonzero()
    if bad.numel():
        first = int(bad[0])
        raise InvariantError(
            f"the PPO ratio is {float(outcome.ratio_N[first])}{at(first)}; expected a finite number above 0. One "
            "update moved the policy too far: lower train.learning_rate"
        )
