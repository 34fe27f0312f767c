"""The method as functions of plain tensors, for any trainer (docs/library.md)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from nemo_uecr.core import GAP_CLIP
from nemo_uecr.core.methods import Advantages, Method, RunState, method_of
from nemo_uecr.core.methods.base import DETAILS
from nemo_uecr.core.methods.uecr import Puu, Uecr, UnifiedAdvantage, direction, ecr, log_confidence
from nemo_uecr.core.record import (
    Groups,
    ScoredBatch,
    check_not_empty,
    check_per_response,
    check_scores,
    group_ids,
    masked,
    rows,
)
from nemo_uecr.errors import ConfigError, ScoreError

#: What becomes of an empty response and of a group of one.
Unusable = Literal["error", "zero"]


@torch.no_grad()
def teacher_reward(*, old_logp: Tensor, teacher_logp: Tensor, mask: Tensor, clip: float = GAP_CLIP) -> Tensor:
    """Teacher reward of each response: the token mean of the clipped gap.

    ``R^T = sum_t m clip(delta, -clip, clip) / sum_t m``

    Args:
        old_logp: [..., T] log pi_old(y_t) at temperature 1, nats: not the log-probabilities of the ratio, which are
            at the rollout temperature.
        teacher_logp: [..., T] log pi_T(y_t) at temperature 1, nats.
        mask: [..., T] bool or integer, the sampled tokens; scores elsewhere are never read.
        clip: bound of the gap, nats.

    Returns:
        [...] float64, nats.

    Raises:
        ConfigError: If the clip is not a positive number.
        ScoreError: If a masked-in score is not finite or a response is empty.

    References:
        eq:unified-reward; the clip is that of eq:app-puu-audit-reward.
    """
    if not 0 < clip < math.inf:
        raise ConfigError(f"clip is {clip}; expected a positive number of nats")
    mask_BT = rows(check_scores(mask, teacher_logp=teacher_logp, old_logp=old_logp))
    check_not_empty(mask_BT)
    gap_BT = masked("teacher_logp", rows(teacher_logp), mask_BT) - masked("old_logp", rows(old_logp), mask_BT)
    mean_B = gap_BT.clamp(-clip, clip).sum(1, dtype=torch.float64) / mask_BT.sum(1)
    return mean_B.reshape(mask.shape[:-1])


@torch.no_grad()
def unified_advantage(
    task_reward: Tensor,
    teacher_reward: Tensor,
    group: Tensor | Sequence[Hashable],
    *,
    alpha: float,
    std_floor: float = 0.0,
    sample_std: bool = False,
) -> UnifiedAdvantage:
    """PUU's advantage and its exact decomposition.

        R^U = R^task + alpha R^T
        A^U = (R^U - mean) / (Std(R^U) + eps),   A^task|U and A^T|U over the same denominator
        A^U = A^task|U + alpha A^T|U

    Where the responses of one prompt lie on several ranks, gather rewards and groups, call this with all of them, and
    take the own rows of the result.

    Args:
        task_reward: [...] verifier reward.
        teacher_reward: [...] teacher reward, nats.
        group: [...] prompt identities, or a flat sequence of hashable ones.
        alpha: teacher weight.
        std_floor: lower bound of the standard deviation; 0 is the paper.
        sample_std: divide the variance by G - 1 instead of G.

    Returns:
        Components of the rewards' shape.

    Raises:
        ConfigError: If a setting is out of range.
        ScoreError: If a reward is not finite, shapes differ, or a group has one response.

    References:
        eq:unified-advantage, eq:unified-components, prop:adv-decomposition.
    """
    puu = Puu(alpha=alpha, std_floor=std_floor, sample_std=sample_std)
    check_per_response(task_reward.shape, task_reward=task_reward, teacher_reward=teacher_reward)
    groups = Groups.of(group_ids(group, task_reward.device))
    if len(groups.index_B) != task_reward.numel():
        raise ScoreError(f"group names {len(groups.index_B)} responses; expected {task_reward.numel()}")
    groups.check_pairs()
    found = puu.unify(task_reward.reshape(-1), teacher_reward.reshape(-1), groups)
    return UnifiedAdvantage(*(part_B.reshape(task_reward.shape) for part_B in found))


@torch.no_grad()
def ecr_residual(
    *,
    old_logp: Tensor,
    teacher_logp: Tensor,
    teacher_entropy: Tensor,
    mask: Tensor,
    task_advantage: Tensor,
    tau_delta: float,
    tau_entropy: float,
) -> Tensor:
    """ECR's residual ``q = 1/2 c (d - mu)``, which sums to zero over each response.

    UECR's token advantage is ``A^U + rho A^task|U q``.

    Args:
        old_logp: [..., T] log pi_old(y_t) at temperature 1, nats.
        teacher_logp: [..., T] log pi_T(y_t) at temperature 1, nats.
        teacher_entropy: [..., T] full-vocabulary teacher entropy +H at temperature 1, nats.
        mask: [..., T] bool or integer, the sampled tokens; scores elsewhere are never read.
        task_advantage: [...] A^task|U of `unified_advantage`; its sign alone is read.
        tau_delta: gap scale, nats, > 0.
        tau_entropy: entropy scale, nats, > 0.

    Returns:
        [..., T] in the dtype of the scores, 0 where the mask is False.

    Raises:
        ConfigError: If a setting is out of range.
        ScoreError: If a masked-in score or a task advantage is not finite, an entropy is negative, shapes differ, or a
            response is empty.

    References:
        eq:local-signal, eq:projection-weights, prop:projection.
    """
    Uecr(alpha=0.0, rho=0.0, tau_delta=tau_delta, tau_entropy=tau_entropy)  # refuses what is out of range
    given = {"teacher_logp": teacher_logp, "old_logp": old_logp, "teacher_entropy": teacher_entropy}
    mask_BT = rows(check_scores(mask, **given))
    check_per_response(mask.shape[:-1], task_advantage=task_advantage)
    check_not_empty(mask_BT)
    teacher_BT, old_BT, entropy_BT = (masked(name, rows(each), mask_BT) for name, each in given.items())
    sign_B1 = task_advantage.reshape(-1, 1).sign().to(old_BT.dtype)
    d_BT = direction(teacher_BT - old_BT, sign_B1, tau_delta=tau_delta)
    q_BT = ecr(d_BT, log_confidence(entropy_BT, tau_entropy=tau_entropy), mask_BT).q_BT
    return q_BT.reshape(mask.shape)


def uecr_advantage(
    task_reward: Tensor,
    group: Tensor | Sequence[Hashable],
    mask: Tensor,
    *,
    old_logp: Tensor,
    teacher_logp: Tensor,
    teacher_entropy: Tensor,
    alpha: float,
    rho: float,
    tau_delta: float,
    tau_entropy: float,
    std_floor: float = 0.0,
    sample_std: bool = False,
    unusable: Unusable = "error",
) -> Tensor:
    """UECR's token advantages ``A = A^U + rho A^task|U q`` of a whole batch.

    Args:
        task_reward: [...] verifier reward.
        group: [...] prompt identities, or a flat sequence of them (strings, UUIDs).
        mask: [..., T] bool or integer, the sampled tokens; scores elsewhere are never read.
        old_logp: [..., T] log pi_old(y_t) at temperature 1, nats; the policy's ratio wants the rollout temperature's.
        teacher_logp: [..., T] log pi_T(y_t) at temperature 1, nats.
        teacher_entropy: [..., T] full-vocabulary teacher entropy +H at temperature 1, nats.
        alpha: weight of the teacher's reward.
        rho: redistribution strength, 0 <= rho < 1.
        tau_delta: gap scale, nats, > 0.
        tau_entropy: entropy scale, nats, > 0.
        std_floor: lower bound of the group's standard deviation; 0 is the paper.
        sample_std: divide the variance by G - 1 instead of G.
        unusable: as for `method_advantage`.

    Returns:
        [..., T] in the dtype of the scores, 0 where the mask is False.

    Raises:
        ConfigError: If a setting is out of range.
        ScoreError: If a score is not finite, or a response or group cannot be used.

    References:
        eq:unified-advantage, eq:final-advantage.
    """
    if mask.shape[:-1].numel() == 0:
        return torch.zeros_like(old_logp)
    batch = ScoredBatch.of(task_reward, group, mask, old_logp, teacher_logp, teacher_entropy)
    found = method_advantage(
        "uecr", batch, unusable=unusable, alpha=alpha, rho=rho, tau_delta=tau_delta, tau_entropy=tau_entropy,
        std_floor=std_floor, sample_std=sample_std,
    )  # fmt: skip
    return found.advantage_BT.reshape(mask.shape)


@torch.no_grad()
def method_advantage(
    name: str, batch: ScoredBatch, *, detail: bool = False, unusable: Unusable = "error", **settings: Any
) -> Advantages:
    """Token advantages of a batch by one of the methods, detached.

    Args:
        name: the method, as in ``method.name`` of a configuration.
        batch: the responses with the scores that the method reads.
        detail: also return direction, confidence, residual and weight as [B, T] tensors.
        unusable: "error" refuses an empty response and a group of one; with "zero" an empty response takes no part in
            its group, and it and a response that is left alone get advantage 0. For padded batches.
        settings: the method's settings by name, those of other methods ignored, and of `RunState` what it reads, unless
            ``batch.run`` has it.

    Raises:
        ConfigError: If there is no such method, or a setting is missing or out of range.
        ScoreError: If a score is missing, not finite, or a response or group cannot be used.
    """
    if unusable not in ("error", "zero"):
        raise ConfigError(f"unusable is {unusable!r}; expected 'error' or 'zero'")
    of_run = {each.name for each in fields(RunState)}
    given = {key: value for key, value in settings.items() if key in of_run and value is not None}
    method = method_of(name, {key: value for key, value in settings.items() if key not in of_run})
    if batch.segments_BT is None and method.settings().get("turn_separator") is not None:
        raise ConfigError(
            "turn_separator needs the tokens' text, which a batch does not have; give it segments_BT, each token's turn"
        )
    unset = batch.run == RunState()
    if missing := [key for key in method.reads_run if unset and key not in given and key != "state"]:
        raise ConfigError(f"method {name} needs {', '.join(missing)}, which it was not given")
    batch = replace(batch, run=replace(batch.run, **given))
    usable_B = _usable(batch, method) if unusable == "zero" else batch.mask_BT.new_ones(batch.responses)
    if bool(usable_B.all()):
        found = compute(method, batch)
    elif bool(usable_B.any()):
        found = _scattered(compute(method, batch.select(usable_B)), usable_B)
    else:  # the fields that the method has, without their numbers
        found = _scattered(_masked(method(batch), batch), usable_B)
        found = replace(found, state=found.state and batch.run.state)
    without: dict[str, Any] = dict.fromkeys(DETAILS)
    return found if detail else replace(found, **without)


def compute(method: Method, batch: ScoredBatch) -> Advantages:
    """Token advantages of a batch, detached and masked.

    Raises:
        ScoreError: If a score that the method reads is missing, or a response or group cannot be used.
        ConfigError: If the method has a second surrogate without its coefficient, or the coefficient alone.
    """
    for name in sorted(method.reads):
        batch.score(name)
    if method.needs_group or method.reads:
        check_not_empty(batch.mask_BT, batch.name_of)
    if method.needs_group:
        batch.groups.check_pairs(batch.name_of)
    with torch.no_grad():
        found = _masked(method(batch), batch)
    if (found.advantage_opd_BT is None) != (method.opd_coef is None):
        raise ConfigError(f"method {method.name}: expected opd_coef exactly where it returns advantage_opd_BT")
    return found


def _masked(found: Advantages, batch: ScoredBatch) -> Advantages:
    """Response fields in the dtype of the scores; token fields also [B, T], and without effect outside the mask."""
    mask_BT, dtype = batch.mask_BT, batch.old_logp_BT.dtype
    trained_BT = mask_BT if found.loss_mask_BT is None else mask_BT & found.loss_mask_BT
    changed: dict[str, Any] = {}
    for name, value in vars(found).items():
        if value is None or name == "state":
            continue
        if name.endswith("_B"):
            changed[name] = value.to(dtype)
            continue
        if tuple(value.shape) not in (tuple(mask_BT.shape), (len(mask_BT), 1)):
            got = list(value.shape)  # torch might spread a [B] value along the tokens
            raise ScoreError(f"{name}: got shape {got}, expected {list(mask_BT.shape)}, or one column")
        if name == "loss_mask_BT":
            changed[name] = trained_BT
            continue
        inside_BT = trained_BT if name.startswith("advantage") else mask_BT
        changed[name] = torch.where(inside_BT, value.to(dtype), 1.0 if name == "weight_BT" else 0.0)
    return replace(found, **changed)


def _scattered(found: Advantages, usable_B: Tensor) -> Advantages:
    """The rows of usable responses in their places; 0, and weight 1, in the others."""
    whole: dict[str, Any] = {}
    for name, part in vars(found).items():
        if isinstance(part, Tensor):
            fill = 1 if name == "weight_BT" else 0
            whole[name] = part.new_full((len(usable_B), *part.shape[1:]), fill)
            whole[name][usable_B] = part[: int(usable_B.sum())]
    return replace(found, **whole)


def _usable(batch: ScoredBatch, method: Method) -> Tensor:
    """[B] bool: responses with a token, whose group has another one where the method compares them."""
    usable_B = batch.mask_BT.any(dim=1)
    if not method.needs_group:
        return usable_B
    groups = batch.groups
    if len(groups.size_P) == batch.responses:
        raise ScoreError(
            f"each of the {batch.responses} responses is alone in its group: every advantage would be 0; expected the "
            "same group for all responses to one prompt"
        )
    return usable_B & (torch.bincount(groups.index_B[usable_B], minlength=len(groups.size_P)) > 1)[groups.index_B]
