"""Records of the scoring layer. Legend: N tokens, K temperatures, W statistics a token."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TokenScores:
    """Scores of N given tokens.

    Attributes:
        logp_KN: `[K, N]` float32 log-probabilities in nats, one row a temperature, in the order asked.
        entropy_N: `[N]` float32, +H >= 0 in nats, of softmax(logits) at temperature 1; None if not asked.
        top1_N: `[N]` bool, whether the target attains the largest logit; None if not asked.
    """

    logp_KN: Tensor
    entropy_N: Tensor | None
    top1_N: Tensor | None


@dataclass(frozen=True)
class StatisticsLayout:
    """Which float32 statistics a call reduces the vocabulary to, and the row of each in a `[W, N]` tensor.

    Row 0 is the largest logit m, row 1 the target's logit y, then one sum_v exp((z_v - m) / T) for each
    distinct temperature, and last, if entropy is asked, sum_v (z_v - m) exp(z_v - m).
    One temperature of 1 with entropy takes four rows, 16 bytes a token; a second temperature four bytes more.
    """

    temperatures: tuple[float, ...]
    entropy: bool

    @property
    def sum_temperatures(self) -> tuple[float, ...]:
        """The distinct temperatures of the exponential sums: 1 first where needed, then the rest as asked."""
        needs_one = self.entropy or 1.0 in self.temperatures
        others = tuple(dict.fromkeys(t for t in self.temperatures if t != 1.0))
        return ((1.0,) if needs_one else ()) + others

    @property
    def width(self) -> int:
        """Number of statistics a token, W."""
        return 2 + len(self.sum_temperatures) + int(self.entropy)

    def sum_row(self, temperature: float) -> int:
        """Row of the exponential sum at `temperature`."""
        return 2 + self.sum_temperatures.index(temperature)

    @property
    def weighted_row(self) -> int:
        """Row of sum_v (z_v - m) exp(z_v - m); only with entropy."""
        return self.width - 1


MAX_ROW = 0
TARGET_ROW = 1
