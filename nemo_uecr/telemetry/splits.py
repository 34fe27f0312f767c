"""The token statistics of a step apart: by what the verifier said, by place in the response, by teacher entropy.

Shape legend: B = responses, T = tokens, N = sampled tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_uecr.core.records import Advantages, ScoredBatch
from nemo_uecr.telemetry.names import ENTROPY_EDGES, SPLITS


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
