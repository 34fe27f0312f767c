"""Group statistics in float64. Shape legend: B = responses, P = prompts (groups)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.core.records import EPSILON
from nemo_uecr.errors import ScoreError


@dataclass(frozen=True)
class Groups:
    """Responses by prompt: ``index_B`` in [0, P) and the group sizes, for ragged groups in any order."""

    index_B: Tensor
    size_P: Tensor

    @classmethod
    def of(cls, group_B: Tensor) -> Groups:
        """Number the groups; one of a single member, whose advantage does not exist, is a `ScoreError`."""
        _, index_B, size_P = torch.unique(group_B, return_inverse=True, return_counts=True)
        if bool((size_P < 2).any()):
            row = int((size_P[index_B] < 2).nonzero()[0])
            raise ScoreError(
                f"response {row} is alone in its group; expected at least 2, since an advantage compares responses to "
                "one prompt. Sample more for each prompt, or leave this response out"
            )
        return cls(index_B, size_P)

    def mean(self, value_B: Tensor) -> Tensor:
        """[B] float64 mean of each response's group."""
        total_P = torch.zeros(self.size_P.shape, dtype=torch.float64, device=value_B.device)
        total_P.index_add_(0, self.index_B, value_B.to(torch.float64))
        return (total_P / self.size_P)[self.index_B]

    def flat(self, value_B: Tensor) -> Tensor:
        """[B] bool, True where max == min in the response's group (a degenerate group)."""
        return self.spread(value_B) == 0

    def spread(self, value_B: Tensor) -> Tensor:
        """[B] float64 ``max - min`` of each response's group."""
        low_B, high_B = self.ends(value_B)
        return high_B - low_B

    def ends(self, value_B: Tensor) -> tuple[Tensor, Tensor]:
        """[B] float64 smallest and largest value of each response's group."""
        value_B = value_B.to(torch.float64)
        low_P = torch.full(self.size_P.shape, torch.inf, dtype=torch.float64, device=value_B.device)
        high_P = (-low_P).scatter_reduce(0, self.index_B, value_B, "amax")
        low_P = low_P.scatter_reduce(0, self.index_B, value_B, "amin")
        return low_P[self.index_B], high_P[self.index_B]

    def centre(self, value_B: Tensor) -> Tensor:
        """[B] float64 value minus its group mean; exactly 0 in a group whose values are all equal."""
        return (value_B.to(torch.float64) - self.mean(value_B)).masked_fill(self.flat(value_B), 0.0)

    def std(self, centred_B: Tensor, *, sample: bool) -> Tensor:
        """[B] float64 standard deviation of each response's group, from centred values.

        ``sigma = sqrt(sum(x^2) / G)``, with ``G - 1`` for the sample form.
        """
        square_P = torch.zeros(self.size_P.shape, dtype=torch.float64, device=centred_B.device)
        square_P.index_add_(0, self.index_B, centred_B.square())
        divisor_P = self.size_P - 1 if sample else self.size_P
        return (square_P / divisor_P).sqrt()[self.index_B]


def denominator(std_B: Tensor, *, floor: float) -> Tensor:
    """``max(sigma, floor) + eps``, the divisor of every group-normalised advantage; [B] float64."""
    return std_B.clamp_min(floor) + EPSILON


def normalised(value_B: Tensor, groups: Groups, *, floor: float, sample: bool) -> tuple[Tensor, Tensor]:
    """Value ``(x - mean) / (max(std, floor) + eps)`` and the group's std, [B] float64 each (eq:grpo-adv)."""
    centred_B = groups.centre(value_B)
    std_B = groups.std(centred_B, sample=sample)
    return centred_B / denominator(std_B, floor=floor), std_B
