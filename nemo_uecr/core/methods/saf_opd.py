"""SAF-OPD: GRPO plus a distillation term that is sparsified, bounded, warmed up and annealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import Advantages, Block

#: The warm-up ends early once the student's KL to the teacher fell by this share of its first value.
KL_DROP = 0.2


def saf_opd(
    view: View, *, keep: float, bound: float, warmup: float, step: int, total_steps: int, state: Mapping[str, float]
) -> Advantages:
    """``A = A^GRPO + c(s) M bound tanh(delta)``; M is 1 on a response's share ``keep`` of largest ``|delta|``.

    The KL of student and teacher is estimated by the batch's mean of ``-delta``; its first value, and the step at which
    the warm-up ended, are carried over.
    """
    view.teacher_reward()
    kl = -float(view.total(view.gap).sum() / view.batch.token_counts_B.sum())
    first = state.get("first_kl", kl)
    now, ended = step + 1, state.get("warmup_end")
    if ended is None and (now >= warmup or (first > 0 and first - kl >= KL_DROP * first)):
        ended = now
    strength = bound * coefficient(now, ended, warmup=warmup, total_steps=total_steps)

    def tokens(block: Block) -> dict[str, Tensor]:
        delta = view.gap(block)
        small = delta.abs() < smallest_kept(view, block, delta.abs(), keep)
        term = delta.tanh_().masked_fill_(small, 0.0).mul_(strength)
        return {"advantage_BT": term.add_(view.column(view.grpo_B, block))}

    carried = {"first_kl": first} | ({} if ended is None else {"warmup_end": float(ended)})
    return replace(view.tokens(tokens), state=carried)


def coefficient(now: int, ended: float | None, *, warmup: float, total_steps: int) -> float:
    """``c``: ``now / warmup``; once the warm-up ended, its value there times a line from 1 to 0 at the last step."""
    if ended is None:
        return now / warmup
    left = max(1.0, total_steps - ended)
    return min(ended / warmup, 1.0) * max(0.0, 1.0 - (now - ended) / left)


def smallest_kept(view: View, block: Block, size: Tensor, keep: float) -> Tensor:
    """[b, 1] the quantile 1 - keep of each response's ``|delta|``, interpolated linearly."""
    ascending = size.masked_fill(~block.of(view.batch.mask_BT), torch.inf).sort(dim=1).values
    place = (1.0 - keep) * (view.count(block) - 1.0)
    low, high = (ascending.gather(1, at.long()) for at in (place.floor(), place.ceil()))
    return low + (place - place.floor()).to(low.dtype) * (high - low)
