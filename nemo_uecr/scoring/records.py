"""What a scoring call takes and returns. Legend: N tokens, K temperatures, W statistics per token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.errors import ScoreError

MAX_ROW = 0
TARGET_ROW = 1


class NonFiniteScoreError(ScoreError):
    """The logits of a token are not finite, or its log-probability has no float32."""


@dataclass(frozen=True)
class TokenScores:
    """Scores of given tokens, of any leading shape `[...]`; `[N]` of the functions that take flat tokens.

    Attributes:
        temperatures: the K temperatures of the log-probabilities, in the order asked.
        logp: `[K, ...]` float32 log-probabilities in nats, one row per temperature.
        entropy: `[...]` float32, +H >= 0 in nats, of softmax(logits) at temperature 1; None if not asked.
        dropped: `[...]` float32, share of probability at temperature 1 that the padding columns had before they were
            cut; None if not asked.
    """

    temperatures: tuple[float, ...]
    logp: Tensor
    entropy: Tensor | None
    dropped: Tensor | None = None

    def at(self, temperature: float) -> Tensor:
        """`[...]` log-probabilities at one of the temperatures that were asked for."""
        if temperature not in self.temperatures:
            raise ScoreError(f"no scores at temperature {temperature:g}; expected one of {list(self.temperatures)}")
        return self.logp[self.temperatures.index(temperature)]


@dataclass(frozen=True)
class VocabShard:
    """This rank's place in a vocabulary that a process group shards.

    The ranks must make the same calls, with the same targets and options; nothing checks it.

    Attributes:
        first_column: token id of this rank's column 0; shards tile the vocabulary in rank order, widths may differ.
        group: the process group of the shards; None is the default group.
    """

    first_column: int
    group: dist.ProcessGroup | None


@dataclass(frozen=True)
class StatisticsLayout:
    """Which float32 statistics a call reduces the vocabulary to, and the row of each in a `[W, N]` tensor.

    Row 0 is the largest logit m, row 1 the target's logit y, then one sum_v exp((z_v - m) / T) for each
    distinct temperature, then, if entropy is asked, sum_v (z_v - m) exp(z_v - m), and last, if the dropped mass is
    asked, log sum_v exp(z_v) over the padding columns.
    One temperature of 1 with entropy takes four rows, 16 bytes per token; a second temperature four bytes more.
    """

    temperatures: tuple[float, ...]
    entropy: bool
    dropped: bool = False

    def __post_init__(self) -> None:
        for temperature in self.temperatures:
            if not (math.isfinite(temperature) and temperature > 0):
                raise ScoreError(f"temperature is {temperature}, expected a finite number above 0")

    @property
    def sum_temperatures(self) -> tuple[float, ...]:
        """The distinct temperatures of the exponential sums: 1 first where needed, then the rest as asked."""
        needs_one = self.entropy or self.dropped or 1.0 in self.temperatures
        others = tuple(dict.fromkeys(t for t in self.temperatures if t != 1.0))
        return ((1.0,) if needs_one else ()) + others

    @property
    def width(self) -> int:
        """Number of statistics per token, W."""
        return self.weighted_row + int(self.entropy) + int(self.dropped)

    def sum_row(self, temperature: float) -> int:
        """Row of the exponential sum at `temperature`."""
        return 2 + self.sum_temperatures.index(temperature)

    @property
    def weighted_row(self) -> int:
        """Row of sum_v (z_v - m) exp(z_v - m); only with entropy."""
        return 2 + len(self.sum_temperatures)


def check_tokens(logits: Tensor, tokens: Tensor) -> None:
    """Check types, shapes and dtypes of logits and targets."""
    if hasattr(logits, "to_local"):  # the kernels would read the local memory as if it were the whole
        raise ScoreError(
            "logits are a DTensor; expected a plain tensor: logits.to_local(), with shard=VocabShard(...) where its "
            "vocabulary is split"
        )
    if (
        logits.shape[:-1] != tokens.shape
        or logits.dtype not in (torch.float32, torch.bfloat16, torch.float16)
        or tokens.dtype not in (torch.int64, torch.int32)
    ):
        raise ScoreError(
            f"logits have shape {list(logits.shape)} and are {logits.dtype}, tokens {list(tokens.shape)} and "
            f"{tokens.dtype}; expected a row of logits for each token, from the position before it: logits of float32, "
            "bfloat16 or float16, tokens of int64 or int32"
        )


def real_columns(columns: int, valid_vocab: int | None, shard: VocabShard | None) -> int:
    """How many of this rank's vocabulary columns are real; the rest is padding."""
    if valid_vocab is None:
        return columns
    if shard is not None:
        return max(0, min(columns, valid_vocab - shard.first_column))
    if not 1 <= valid_vocab <= columns:
        raise ScoreError(f"valid_vocab is {valid_vocab}, expected 1 to {columns}, the number of columns")
    return valid_vocab
