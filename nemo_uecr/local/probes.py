"""What else is read off the logits that a forward pass scores: each probe gets every span of them.

Shape legend: B = responses, T = response tokens, N = tokens of a span, V = vocabulary, C = compared tokens, K = most
likely token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_uecr.core.agreement import TokenSample
from nemo_uecr.generation.decode import to_device
from nemo_uecr.steps.step_record import ComparedTokens


class Write(NamedTuple):
    """``table[place] = values``, once the values, which may be on a GPU, are there."""

    table: Tensor
    place: Any
    values: Tensor


#: Rows and columns [N] in a [B, T] layout, on the CPU.
Place = tuple[Tensor, Tensor]
#: What is to be written of a span, neighbouring tokens: the logits that predict them, the tokens, and their places.
Probe = Callable[[Tensor, Tensor, Place], Iterable[Write]]


class TopTokens:
    """The most likely ids at the compared tokens, best first."""

    def __init__(self, sample: TokenSample) -> None:
        self.sample = sample
        count = int(sample.at_BT.sum())
        self.ids_CK = torch.zeros(count, sample.best, dtype=torch.long)
        self.seen_C = torch.zeros(count, dtype=torch.bool)

    def __call__(self, logits_NV: Tensor, target_N: Tensor, place: Place) -> Iterator[Write]:
        """The ids of those that are in this span."""
        number_N = self.sample.number_BT[place]
        own_n = (number_N >= 0).nonzero().squeeze(1)
        self.seen_C[number_N[own_n]] = True
        top_nK = self.sample.top_ids(logits_NV[to_device(own_n, logits_NV.device)])
        yield Write(self.ids_CK, number_N[own_n], top_nK)


class Comparison:
    """The agreement of student and teacher on the next token, at a sample of the tokens: a probe for each."""

    def __init__(self, sample: TokenSample) -> None:
        self.student, self.teacher = TopTokens(sample), TopTokens(sample)

    def result(self) -> ComparedTokens:
        """The tokens that a teacher here has scored."""
        row_C, column_C = self.student.sample.at_BT.nonzero(as_tuple=True)
        seen_C = self.teacher.seen_C
        return ComparedTokens(row_C[seen_C], column_C[seen_C], self.student.ids_CK[seen_C], self.teacher.ids_CK[seen_C])


class TokenRanks:
    """[B, T] each token's rank among the columns that count, 1 for the largest; equal logits have the better rank."""

    def __init__(self, shape: tuple[int, ...], columns: int | None) -> None:
        self._columns = columns
        self.rank_BT = torch.zeros(shape, dtype=torch.int32)

    def __call__(self, logits_NV: Tensor, target_N: Tensor, place: Place) -> Iterator[Write]:
        """The ranks of a span."""
        above_NV = logits_NV[:, : self._columns] > logits_NV.gather(1, target_N.unsqueeze(1))
        yield Write(self.rank_BT, place, 1 + above_NV.sum(dim=1, dtype=torch.int32))

    def complete(self, mask_BT: Tensor) -> Tensor | None:
        """The ranks, None unless every token of the mask has one: a teacher on a server shows no logits."""
        return self.rank_BT if bool((self.rank_BT[mask_BT] > 0).all()) else None


class OwnEnds:
    """[B, T] nats from the log-probability of a given end token to that of any of the model's own; 0 elsewhere."""

    def __init__(self, ends_BT: Tensor, own_ids: Collection[int]) -> None:
        self._ends_BT, self._own = ends_BT, sorted(own_ids)
        self.difference_BT = torch.zeros(ends_BT.shape)

    def __call__(self, logits_NV: Tensor, target_N: Tensor, place: Place) -> Iterator[Write]:
        """The differences of the ends in a span."""
        end_n = self._ends_BT[place].nonzero().squeeze(1)
        if len(end_n):
            at_n = to_device(end_n, logits_NV.device)
            logits_nV, target_n1 = logits_NV[at_n].float(), target_N[at_n].unsqueeze(1)
            more_n = logits_nV[:, self._own].logsumexp(1) - logits_nV.gather(1, target_n1).squeeze(1)
            row_N, column_N = place
            yield Write(self.difference_BT, (row_N[end_n], column_N[end_n]), more_n)
