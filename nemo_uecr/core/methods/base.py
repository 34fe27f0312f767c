"""What a method is: its name, its equation, what it reads, the identities it promises, and one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.core.blocks import token_blocks
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings

Compute = Callable[[ScoredBatch, Settings, bool], Advantages]


@dataclass(frozen=True)
class Method:
    """One way to turn a scored batch into token advantages.

    Attributes:
        name: key of ``method.name``.
        equation: the token advantage on one line.
        provenance: where the equation comes from, and what is not in the paper.
        settings: the `Settings` fields it uses.
        inputs: the teacher fields of `ScoredBatch` it reads; empty means that no teacher is ever loaded.
        identities: names in `nemo_uecr.core.invariants.IDENTITIES` that must hold; a violation fails the run.
        monitored: names there that are logged and never fail.
        advantages: the computation; the flag asks for the token-level detail fields as well.
    """

    name: str
    equation: str
    provenance: str
    settings: frozenset[str]
    inputs: frozenset[str]
    identities: tuple[str, ...]
    advantages: Compute
    monitored: tuple[str, ...] = ()

    @property
    def needs_teacher(self) -> bool:
        """Whether the method reads any teacher score."""
        return bool(self.inputs)

    def compute(self, batch: ScoredBatch, settings: Settings, *, detail: bool = False) -> Advantages:
        """Token advantages of a batch, detached.

        Args:
            batch: the responses with their scores.
            settings: the method's scalars; those it does not use are ignored.
            detail: also return direction, confidence, residual and weight as [B, T] tensors.

        Raises:
            ConfigError: If a setting that the method uses was not given.
            ScoreError: If a score is missing, not finite, or a response or group cannot be used.
        """
        for name in sorted(self.settings):
            settings.need(name, self.name)
        with torch.no_grad():
            return self.advantages(batch, settings, detail)


def broadcast(batch: ScoredBatch, value_B: Tensor) -> Tensor:
    """[B, T] with each response's value on its sampled tokens and 0 elsewhere, in the dtype of the scores."""
    out_BT = torch.zeros_like(batch.old_logp_BT, memory_format=torch.contiguous_format)
    stored_B = value_B.to(out_BT.dtype)
    for block in token_blocks(batch):
        block.of(out_BT).copy_(stored_B[block.rows].unsqueeze(1) * block.of(batch.mask_BT))
    return out_BT


def stored(value_B: Tensor, batch: ScoredBatch) -> Tensor:
    """A float64 response-level quantity in the dtype of the scores, as it is kept and handed on."""
    return value_B.to(batch.old_logp_BT.dtype)
