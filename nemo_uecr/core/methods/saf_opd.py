"""SAF-OPD: GRPO plus a distillation term that is sparsified, bounded, warmed up and annealed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from nemo_uecr.core.methods.base import TEACHER, Advantages
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.record import ScoredBatch

#: The warm-up ends early once the student's KL to the teacher fell by this share of its first value.
KL_DROP = 0.2


@dataclass(frozen=True, kw_only=True)
class SafOpd(Grpo):
    """A = A^GRPO + c(s) M bound tanh(delta); M keeps the largest gaps of a response; c warms up, then anneals to 0.

    The KL of student and teacher is estimated by the batch's mean of ``-delta``; its first value, and the step at which
    the warm-up ended, are carried over.
    """

    name = "saf_opd"
    source = (
        "SAF-OPD's own code, kissshhot/SAF-OPD; there the KL is the loss's of the step before, here the batch's mean "
        "of -delta"
    )
    reads = TEACHER
    reads_run = ("step", "total_steps", "state")

    keep: Annotated[float, Range(0.001, 1)] = 0.2  # Share of a response's tokens, those of the largest gaps, in M.
    bound: Annotated[float, Range(0, 10)] = 0.1  # Largest size of the distillation term.
    warmup: Annotated[float, Range(1, 100_000)] = 100  # Steps until c reaches 1, unless the KL falls earlier.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        kl = -float(batch.token_sum(batch.gap_BT).sum() / batch.token_count_B.sum())
        first, now, ended = batch.run.state.get("first_kl", kl), batch.run.step + 1, batch.run.state.get("warmup_end")
        if ended is None and (now >= self.warmup or (first > 0 and first - kl >= KL_DROP * first)):
            ended = now
        strength = self.bound * coefficient(now, ended, warmup=self.warmup, total_steps=batch.run.total_steps)
        grpo, small_BT = super().__call__(batch), batch.gap_BT.abs() < smallest_kept(batch, self.keep)
        return replace(
            grpo, advantage_BT=grpo.advantage_BT + strength * batch.gap_BT.tanh().masked_fill(small_BT, 0.0),
            teacher_reward_B=batch.teacher_reward_B,
            state={"first_kl": first} | ({} if ended is None else {"warmup_end": float(ended)}),
        )  # fmt: skip


def coefficient(now: int, ended: float | None, *, warmup: float, total_steps: int) -> float:
    """``c``: ``now / warmup``; once the warm-up ended, its value there times a line from 1 to 0 at the last step."""
    if ended is None:
        return now / warmup
    left = max(1.0, total_steps - ended)
    return min(ended / warmup, 1.0) * max(0.0, 1.0 - (now - ended) / left)


def smallest_kept(batch: ScoredBatch, keep: float) -> Tensor:
    """[B, 1] the quantile 1 - keep of each response's ``|delta|``, interpolated linearly."""
    ascending_BT = batch.gap_BT.abs().masked_fill(~batch.mask_BT, math.inf).sort(1).values
    place_B1 = ((1.0 - keep) * (batch.token_count_B.unsqueeze(1) - 1.0)).clamp(min=0.0)  # an empty response has none
    low_B1, high_B1 = (ascending_BT.gather(1, at_B1.long()) for at_B1 in (place_B1.floor(), place_B1.ceil()))
    return low_B1 + (place_B1 - place_B1.floor()).to(low_B1.dtype) * (high_B1 - low_B1)
