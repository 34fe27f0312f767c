"""The numbers of one step, from the records that `core` reads and returns: the same for both back ends.

Shape legend: B = responses, P = groups, T = tokens, N = sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nemo_uecr.core.groups import Groups
from nemo_uecr.core.records import GAP_CLIP, Advantages, ScoredBatch, Settings
from nemo_uecr.telemetry.names import ENTROPY_EDGES, SPLITS

#: The teacher tells the responses of a group apart when their rewards R^T range over more than this, nats (the paper).
TEACHER_RANGE = 0.05
#: Residuals whose name among the metrics says "error".
ERROR_NAMES = {"budget": "budget_error", "decomposition": "decomposition_error"}


def method_metrics(batch: ScoredBatch, advantages: Advantages, settings: Settings, *, noise: float) -> dict[str, float]:
    """Rewards, groups, advantages, the teacher's gap, token weights, and their splits.

    Args:
        batch: the record that the method read.
        advantages: what it made of it, in detail.
        settings: its scalars.
        noise: below this standard deviation a group is counted.
    """
    return {
        **reward_metrics(batch, advantages, settings),
        **group_metrics(batch, advantages, noise=noise),
        **advantage_metrics(batch, advantages, settings),
        **teacher_metrics(batch),
        **credit_metrics(batch, advantages),
        **split_metrics(batch, advantages),
    }


def identity_metrics(residuals: Mapping[str, float]) -> dict[str, float]:
    """The worst residual of each identity by its metric's name."""
    return {f"identity/{ERROR_NAMES.get(name, name)}": value for name, value in residuals.items()}


def reward_metrics(batch: ScoredBatch, advantages: Advantages, settings: Settings) -> dict[str, float]:
    """Rewards and their spread; the teacher's where the method has one."""
    task_B = batch.task_reward_B.double()
    metrics = _mean_std("reward/task", task_B)
    if advantages.teacher_reward_B is not None:
        teacher_B = advantages.teacher_reward_B.double()
        metrics |= _mean_std("reward/teacher", teacher_B)
        if advantages.advantage_unified_B is not None and settings.alpha is not None:
            metrics |= _mean_std("reward/unified", task_B + settings.alpha * teacher_B)
    return metrics


def group_metrics(batch: ScoredBatch, advantages: Advantages, *, noise: float) -> dict[str, float]:
    """Shares of prompt groups by what the verifier says, each group counted once."""
    groups = Groups.of(batch.group_B)
    count = groups.size_P.numel()
    weight_B = 1.0 / groups.size_P[groups.index_B].double() / count
    flat_B = groups.flat(batch.task_reward_B)
    right_B = flat_B & (batch.task_reward_B > 0)

    def share(chosen_B: Tensor) -> float:
        return float((weight_B * chosen_B).sum())

    metrics = {
        "group/count": float(count),
        "group/degenerate_share": share(flat_B),
        "group/all_right_share": share(right_B),
        "group/all_wrong_share": share(flat_B & ~right_B),
        "group/mixed_share": share(~flat_B),
    }
    if advantages.teacher_reward_B is not None:
        spread_B = groups.spread(advantages.teacher_reward_B)
        metrics["group/teacher_only_share"] = share(flat_B & (spread_B > TEACHER_RANGE))
    if advantages.unified_std_B is not None:
        metrics["group/below_noise_share"] = share(advantages.unified_std_B < noise)
    return metrics


def advantage_metrics(batch: ScoredBatch, advantages: Advantages, settings: Settings) -> dict[str, float]:
    """The final advantage, PUU's components, and what happens where the verifier says nothing."""
    advantage_N = advantages.advantage_BT[batch.mask_BT].double()
    metrics = {
        **_mean_std("advantage", advantage_N, "/"),
        "advantage/min": float(advantage_N.min()),
        "advantage/max": float(advantage_N.max()),
        "advantage/abs_mean": float(advantage_N.abs().mean()),
    }
    components = {
        "unified": (advantages.advantage_unified_B, 1.0),
        "task": (advantages.advantage_task_B, 1.0),
        "teacher": (advantages.advantage_teacher_B, settings.alpha),
    }
    for name, (value_B, scale) in components.items():
        if value_B is not None and scale is not None:
            metrics[f"advantage/{name}_abs_mean"] = float((scale * value_B.double()).abs().mean())
    flat_B = Groups.of(batch.group_B).flat(batch.task_reward_B)
    metrics |= _sign_flips(advantages, flat_B)
    flat_N = advantages.advantage_BT[batch.mask_BT & flat_B.unsqueeze(1)].double().abs()
    if flat_N.numel():
        metrics["advantage/degenerate_abs_mean"] = float(flat_N.mean())
        metrics["advantage/degenerate_abs_max"] = float(flat_N.max())
    return metrics


def _sign_flips(advantages: Advantages, flat_B: Tensor) -> dict[str, float]:
    """Share of the responses of mixed groups that the unified advantage pushes against the verifier."""
    unified_B, task_B = advantages.advantage_unified_B, advantages.advantage_task_B
    if unified_B is None or task_B is None or bool(flat_B.all()):
        return {}
    flipped_B = unified_B.sign() != task_B.sign()
    return {"advantage/sign_flip_share": float(flipped_B[~flat_B].double().mean())}


def teacher_metrics(batch: ScoredBatch) -> dict[str, float]:
    """Gap and teacher entropy; empty for a batch without teacher scores."""
    metrics: dict[str, float] = {}
    if batch.teacher_logp_BT is not None:
        gap_N = (batch.teacher_logp_BT - batch.old_logp_BT)[batch.mask_BT].double()
        metrics |= _mean_std("teacher/gap", gap_N)
        metrics |= {
            "teacher/gap_abs_mean": float(gap_N.abs().mean()),
            "teacher/gap_min": float(gap_N.min()),
            "teacher/gap_max": float(gap_N.max()),
            "teacher/gap_clip_share": float((gap_N.abs() > GAP_CLIP).double().mean()),
        }
    if batch.teacher_entropy_BT is not None:
        entropy_N = batch.teacher_entropy_BT[batch.mask_BT].double()
        metrics |= _mean_std("teacher/entropy", entropy_N)
        metrics["teacher/entropy_max"] = float(entropy_N.max())
    return metrics


def credit_metrics(batch: ScoredBatch, advantages: Advantages) -> dict[str, float]:
    """Confidence, direction, centre, residual and weight, where the method has them."""
    metrics: dict[str, float] = {}
    mask = batch.mask_BT
    if advantages.confidence_BT is not None:
        metrics["ecr/confidence_mean"] = float(advantages.confidence_BT[mask].double().mean())
    if advantages.direction_BT is not None:
        metrics["ecr/direction_abs_mean"] = float(advantages.direction_BT[mask].double().abs().mean())
    if advantages.centre_B is not None:
        metrics["ecr/centre_mean"] = float(advantages.centre_B.double().mean())
        metrics["ecr/centre_abs_max"] = float(advantages.centre_B.double().abs().max())
    if advantages.residual_BT is not None:
        residual_N = advantages.residual_BT[mask].double().abs()
        metrics["ecr/residual_abs_mean"] = float(residual_N.mean())
        metrics["ecr/residual_abs_max"] = float(residual_N.max())
    if advantages.weight_BT is not None:
        weight_N = advantages.weight_BT[mask].double()
        metrics["ecr/weight_mean"] = float(weight_N.mean())
        metrics["ecr/weight_min"] = float(weight_N.min())
        metrics["ecr/weight_max"] = float(weight_N.max())
    return metrics


def split_metrics(batch: ScoredBatch, advantages: Advantages) -> dict[str, float]:
    """Means over the tokens of each part of each split; a part without tokens, and what a method lacks, is absent."""
    right_B = batch.task_reward_B > 0
    part_N = {"outcome": (~right_B).long().unsqueeze(1).expand(batch.mask_BT.shape)[batch.mask_BT]}
    part_N["position"] = quarter(batch.mask_BT)[batch.mask_BT]
    if batch.teacher_entropy_BT is not None:
        edges = torch.tensor(ENTROPY_EDGES, device=batch.mask_BT.device)
        part_N["entropy_bin"] = torch.bucketize(batch.teacher_entropy_BT[batch.mask_BT].float(), edges, right=True)
    values = _values(batch, advantages)
    metrics = _response_metrics(batch, advantages, right_B)
    for split, index_N in part_N.items():
        metrics |= _means(split, index_N, values)
    return metrics


def quarter(mask_BT: Tensor) -> Tensor:
    """[B, T] which quarter of its response a sampled token lies in, 0 to 3: ``floor(4 i / L)``, i counted from 0."""
    place_BT = mask_BT.long().cumsum(dim=1) - 1
    length_B1 = mask_BT.sum(dim=1, keepdim=True).clamp_min(1)
    return (4 * place_BT // length_B1).clamp_(0, 3)


def _values(batch: ScoredBatch, advantages: Advantages) -> dict[str, Tensor]:
    mask_BT = batch.mask_BT
    advantage_N = advantages.advantage_BT[mask_BT].double()
    values = {"advantage_mean": advantage_N, "advantage_abs_mean": advantage_N.abs()}
    if batch.teacher_logp_BT is not None:
        gap_N = (batch.teacher_logp_BT - batch.old_logp_BT)[mask_BT].double()
        values |= {"gap_mean": gap_N, "gap_abs_mean": gap_N.abs()}
    if batch.teacher_entropy_BT is not None:
        values["entropy_mean"] = batch.teacher_entropy_BT[mask_BT].double()
    if advantages.weight_BT is not None:
        values["weight_mean"] = advantages.weight_BT[mask_BT].double()
    return values


def _means(split: str, index_N: Tensor, values: dict[str, Tensor]) -> dict[str, float]:
    suffixes = [suffix for suffix, _ in SPLITS[split]]
    counts = torch.bincount(index_N, minlength=len(suffixes)).tolist()
    metrics = {f"{split}/token_share_{s}": count / index_N.numel() for s, count in zip(suffixes, counts, strict=True)}
    for name, value_N in values.items():
        sums = torch.bincount(index_N, weights=value_N, minlength=len(suffixes)).tolist()
        for suffix, total, count in zip(suffixes, sums, counts, strict=True):
            if count:
                metrics[f"{split}/{name}_{suffix}"] = total / count
    return metrics


def _response_metrics(batch: ScoredBatch, advantages: Advantages, right_B: Tensor) -> dict[str, float]:
    values = {"length_mean": batch.mask_BT.sum(dim=1).double()}
    if advantages.teacher_reward_B is not None:
        values["teacher_reward_mean"] = advantages.teacher_reward_B.double()
    return {
        f"outcome/{name}_{suffix}": float(value_B[chosen_B].mean())
        for name, value_B in values.items()
        for suffix, chosen_B in (("right", right_B), ("wrong", ~right_B))
        if bool(chosen_B.any())
    }


def ratio_metrics(ratio_N: Tensor, first_ratio_N: Tensor, *, clip_low: float, clip_high: float) -> dict[str, float]:
    """PPO ratio, clipping and an estimate of KL(old, new) over every trained token of the batch."""
    ratio_N = ratio_N.double()
    return {
        "policy/ratio_mean": float(ratio_N.mean()),
        "policy/ratio_min": float(ratio_N.min()),
        "policy/ratio_max": float(ratio_N.max()),
        "policy/clip_low_share": float((ratio_N < 1.0 - clip_low).double().mean()),
        "policy/clip_high_share": float((ratio_N > 1.0 + clip_high).double().mean()),
        "policy/approx_kl": float((ratio_N - 1.0 - ratio_N.log()).mean()),
        "policy/first_ratio_error": float((first_ratio_N.double() - 1.0).abs().max()),
    }


def length_metrics(mask_BT: Tensor, truncated_B: Tensor) -> dict[str, float]:
    """Response lengths in tokens and the share that hit the limit."""
    length_B = mask_BT.sum(dim=1).double()
    return {
        "response/length_mean": float(length_B.mean()),
        "response/length_min": float(length_B.min()),
        "response/length_max": float(length_B.max()),
        "response/truncated_share": float(truncated_B.double().mean()),
    }


def _mean_std(prefix: str, value: Tensor, joint: str = "_") -> dict[str, float]:
    return {f"{prefix}{joint}mean": float(value.mean()), f"{prefix}{joint}std": float(value.std(correction=0))}
