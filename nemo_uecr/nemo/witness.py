"""What a worker says of its scores from a second look at the logits: one token a response, by the definition.

The first look is the fused, chunked and sharded scoring. The second takes whole rows of the same logits, divides them
by the asked temperature and normalises them with torch alone. Where the answer is used, the two are compared: a worker
that divides by another temperature, filters, counts other columns or shifts its scores is found out.

Shape legend: B = responses of a micro-batch, K = temperatures, n = witnessed here, W = 2 K + 2, V = columns.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.nemo.layout import MicroBatch, Scored
from nemo_uecr.nemo.request import ScoreRequest


def witnessed_token(lengths_B: Tensor) -> Tensor:
    """[B] column of the witnessed token: the middle of the real tokens; 0, which nobody scores, in a row of one."""
    return lengths_B // 2


def witness(
    logits_TV: Tensor,
    found: Scored,
    micro: MicroBatch,
    request: ScoreRequest,
    *,
    tensor: dist.ProcessGroup | None,
    context: dist.ProcessGroup | None,
) -> Tensor:
    """[B, W] log-probability at each temperature, entropy at 1, columns with probability, and the temperatures.

    Args:
        logits_TV: the micro-batch's raw logits, flattened over batch and sequence; this rank's columns.
        found: the predictions whose logits this rank holds.
        micro: whose logits these are.
        request: what is asked.
        tensor: ranks that share the vocabulary; None for one.
        context: ranks that share the sequence; None for one.
    """
    values_BW = torch.zeros(micro.lengths_B.shape[0], 2 * len(request.temperatures) + 2, device=logits_TV.device)
    position_B = witnessed_token(micro.lengths_B).to(found.batch_N) - 1
    here_n = (found.column_N == position_B[found.batch_N]).nonzero().squeeze(1)
    for place in here_n.tolist():  # one row at a time: whole rows in double are large
        row_V = _whole(logits_TV[found.logits_row_N[place]], tensor)[: request.vocabulary]
        values_BW[found.batch_N[place]] = _by_definition(row_V, found.target_N[place], request.temperatures)
    if context is not None:
        dist.all_reduce(values_BW, group=context)
    return values_BW


def _by_definition(row_V: Tensor, target: Tensor, temperatures: tuple[float, ...]) -> Tensor:
    logp = [row_V.div(value).double().log_softmax(dim=0)[target] for value in temperatures]
    entropy = torch.special.entr(row_V.double().softmax(dim=0)).sum()
    used = row_V.new_tensor(temperatures, dtype=torch.float64)
    return torch.cat([torch.stack([*logp, entropy, row_V.isfinite().sum().double()]), used]).float()


def _whole(row_V: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """A row over all columns, from the shards of the ranks that share the vocabulary."""
    if group is None:
        return row_V
    parts = [torch.empty_like(row_V) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, row_V.contiguous(), group=group)
    return torch.cat(parts)
