"""How far student and teacher agree on the next token, on a sample of the sampled tokens.

Shape legend: B = responses, T = tokens, N = compared tokens in row-major order, K = most likely token ids, best first.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

#: K, where the models have so many columns.
TOP = 20
#: Tokens of a step that are compared: a share's standard error is at most 3 points.
COMPARED = 256


@dataclass(frozen=True)
class TokenSample:
    """Where two models are compared.

    Attributes:
        number_BT: 0 to N - 1 at the N compared tokens, row by row; -1 elsewhere.
        columns: output columns that both models have; what one has beyond them is cut before its K are taken.
    """

    number_BT: Tensor
    columns: int

    @classmethod
    def of(cls, mask_BT: Tensor, *, columns: int, seed: int) -> TokenSample:
        """At most `COMPARED` of the tokens in ``mask_BT``, each as likely; a function of mask and seed."""
        found_N2 = mask_BT.nonzero()
        chosen = random.Random(seed).sample(range(len(found_N2)), min(COMPARED, len(found_N2)))
        number_BT = torch.full(mask_BT.shape, -1)
        number_BT[found_N2[sorted(chosen)].unbind(1)] = torch.arange(len(chosen))
        return cls(number_BT, columns)

    @property
    def at_BT(self) -> Tensor:
        """Bool, the compared tokens."""
        return self.number_BT >= 0

    @property
    def best(self) -> int:
        """K."""
        return min(TOP, self.columns)

    def top_ids(self, logits_NV: Tensor) -> Tensor:
        """[N, K] ids of the largest logits among the columns that count."""
        return logits_NV[:, : self.columns].topk(self.best).indices


def agreement(student_NK: Tensor, teacher_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Agreement of two models on the next token.

    a = 1[argmax pi = argmax pi_T];  o = |top_K(pi) & top_K(pi_T)| / K.

    Args:
        student_NK: the student's most likely token ids, best first, without repetition.
        teacher_NK: the teacher's, of the same tokens.

    Returns:
        [N] a and o, float64 shares.
    """
    both_NK = (student_NK.unsqueeze(2) == teacher_NK.unsqueeze(1)).any(dim=2)
    return (student_NK[:, 0] == teacher_NK[:, 0]).double(), both_NK.double().mean(dim=1)
