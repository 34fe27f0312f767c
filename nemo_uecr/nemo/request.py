"""What a scorer is asked, and what its answer says about itself.

Shape legend: B = responses, S = tokens of prompt and response (padded), K = temperatures.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.nemo.shift import CONVENTION

#: Multiplier of the row hash; odd, so that no token is ever multiplied to zero in 64-bit arithmetic.
HASH_MULTIPLIER = 6364136223846793005


@dataclass(frozen=True)
class ScoreRequest:
    """One scoring pass.

    Attributes:
        temperatures: K temperatures of the log-probabilities, in the order of the answer.
        entropy: whether the entropy at temperature 1 is asked as well.
        vocabulary: number of real vocabulary columns; further ones are padding and carry no probability.
        chunk_tokens: tokens scored at once; bounds memory.
    """

    temperatures: tuple[float, ...]
    entropy: bool
    vocabulary: int
    chunk_tokens: int

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the [B, S] columns of the answer."""
        names = tuple(f"logp_{index}" for index in range(len(self.temperatures)))
        return (*names, "entropy") if self.entropy else names

    @property
    def terms(self) -> str:
        """What the answer says about itself; equal texts mean comparable scores."""
        temperatures = ",".join(f"{value:g}" for value in self.temperatures)
        entropy = "+H in nats at temperature 1" if self.entropy else "none"
        filters = "no top-p or top-k"
        return f"temperatures {temperatures}; entropy {entropy}; {filters}; vocabulary {self.vocabulary}; {CONVENTION}"


def row_hash(ids_BS: Tensor, lengths_B: Tensor) -> Tensor:
    """[B] int64 hash of each row's first ``length`` token ids; order matters, padding does not.

    ``h = sum_t (id_t + 1) m^(t + 1)`` modulo 2^64.
    """
    position_S = torch.arange(ids_BS.shape[1], device=ids_BS.device)
    power_S = torch.full_like(position_S, HASH_MULTIPLIER).cumprod(0)
    inside_BS = position_S.unsqueeze(0) < lengths_B.unsqueeze(1)
    return torch.where(inside_BS, (ids_BS.long() + 1) * power_S, 0).sum(dim=1)
