"""What a method sees: the batch, quantities of responses computed once, one loop over blocks.

Shape legend: B = responses, T = tokens, b x t = one block of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.core import ecr, puu
from nemo_uecr.core.groups import Groups, normalised
from nemo_uecr.core.records import GAP_CLIP, Advantages, Block, ScoredBatch, check_finite
from nemo_uecr.errors import ScoreError

#: Token fields of `Advantages` that are made with ``detail`` alone.
DETAILS = frozenset({"weight_BT", "residual_BT", "direction_BT", "confidence_BT"})


class View:
    """A batch as a method sees it.

    Attributes:
        batch: the responses with their scores.
        detail: whether token-level details were asked for.

    Group normalisation divides by ``max(sigma, std_floor) + eps``, sigma being the sample form where ``sample_std``.
    """

    def __init__(
        self, batch: ScoredBatch, *, std_floor: float = 0.0, sample_std: bool = False, detail: bool = False
    ) -> None:
        self.batch, self.detail = batch, detail
        self._floor, self._sample = std_floor, sample_std
        self._kept: dict[str, Any] = {}

    # -- responses ---------------------------------------------------------------------------------------------------

    def teacher_reward(self) -> Tensor:
        """[B] float64 R^T, nats. Refuses empty responses and log-probabilities that are not finite."""
        batch = self.batch
        teacher_BT, total_B = batch.scores("teacher_logp"), torch.empty_like(batch.token_counts_B)
        for block in batch.blocks:
            teacher, old, mask = (block.of(field) for field in (teacher_BT, batch.old_logp_BT, batch.mask_BT))
            total_B[block.rows] = puu.clipped_sum(teacher, old, mask, GAP_CLIP, batch.names(block))
        return self.keep("teacher_reward_B", total_B / batch.token_counts_B)

    @cached_property
    def grpo_B(self) -> Tensor:
        """[B] float64 ``A^GRPO = (R^task - mean) / (Std(R^task) + eps)`` (eq:grpo-adv)."""
        advantage_B, std_B = self.normalised(self.batch.task_reward_B)
        self.keep("unified_std_B", std_B)
        return self.keep("advantage_task_B", advantage_B)

    def normalised(self, value_B: Tensor) -> tuple[Tensor, Tensor]:
        """A group-normalised value and its group standard deviation; [B] float64 each."""
        return normalised(value_B, self._groups, floor=self._floor, sample=self._sample)

    def unified(self, alpha: float) -> puu.UnifiedAdvantage:
        """PUU's components in float64, kept as part of the result."""
        task_B, teacher_B = self.batch.task_reward_B, self.teacher_reward()
        parts = puu.unified_advantage(
            task_B, teacher_B, self._groups, alpha=alpha, std_floor=self._floor, sample_std=self._sample
        )
        self.keep("advantage_unified_B", parts.unified)
        self.keep("advantage_task_B", parts.task)
        self.keep("advantage_teacher_B", parts.teacher)
        self.keep("unified_std_B", parts.std)
        return parts

    @cached_property
    def _groups(self) -> Groups:
        _ = self.batch.token_counts_B  # an empty response is an error for all that compare
        return Groups.of(self.batch.group_B)

    def keep(self, field: str, value_B: Tensor) -> Tensor:
        """Return a [B] quantity as it is, and store it in the dtype of the scores as a field of the result."""
        self._kept[field] = value_B.to(self.batch.old_logp_BT.dtype)
        return value_B

    def with_shuffled_entropy(self, seed: int) -> View:
        """The same batch with the teacher's entropies permuted within each response."""
        shuffled = ecr.with_shuffled_entropy(self.batch, seed=seed)
        return View(shuffled, std_floor=self._floor, sample_std=self._sample, detail=self.detail)

    # -- tokens ------------------------------------------------------------------------------------------------------

    def gap(self, block: Block, behind: str = "old_logp") -> Tensor:
        """Teacher-to-old-policy gap delta, or to the scores named; [b, t] nats, fresh, 0 where the mask is False."""
        teacher, other = self.batch.scores("teacher_logp"), self.batch.scores(behind)
        return puu.gap(block.of(teacher), block.of(other), block.of(self.batch.mask_BT))

    def score(self, name: str, block: Block) -> Tensor:
        """A score by its name in the registry's line, [b, t] nats, fresh, finite, 0 where the mask is False."""
        value, mask = block.of(self.batch.scores(name)), block.of(self.batch.mask_BT)
        masked = torch.where(mask, value, 0.0)
        check_finite(masked.sum(dim=1, dtype=torch.float64), mask, self.batch.names(block), **{name: value})
        return masked

    def direction(self, block: Block, sign_b: Tensor, tau_delta: float) -> Tensor:
        """Direction d of the credit, [b, t], 0 where the mask is False."""
        return ecr.direction(self.gap(block), sign_b, tau_delta)

    def count(self, block: Block) -> Tensor:
        """Sampled tokens of each response, [b, 1]."""
        return self.batch.token_counts_B[block.rows].unsqueeze(1)

    def confidence(self, block: Block, tau_entropy: float) -> tuple[Tensor, Tensor]:
        """Relative confidence [b, t] and its scale [b, 1], from entropies that are finite and not negative."""
        entropy, mask = block.of(self.batch.scores("teacher_entropy")), block.of(self.batch.mask_BT)
        return ecr.confidence(entropy, mask, tau_entropy, self.batch.names(block))

    def column(self, value_B: Tensor, block: Block) -> Tensor:
        """The block's responses of a [B] quantity, [b, 1] in the dtype of the scores."""
        return value_B[block.rows].to(self.batch.old_logp_BT.dtype).unsqueeze(1)

    def total(self, value: Callable[[Block], Tensor]) -> Tensor:
        """[B] float64 sum over each response's tokens of a [b, t] value that is 0 where the mask is False."""
        total_B = torch.empty_like(self.batch.token_counts_B)
        for block in self.batch.blocks:
            total_B[block.rows] = value(block).sum(dim=1, dtype=torch.float64)
        return total_B

    def group_mean(self, value: Callable[[Block], Tensor]) -> Tensor:
        """[B] float64 mean of such a value over all tokens of each response's group."""
        return self._groups.mean(self.total(value)) / self._groups.mean(self.batch.token_counts_B)

    def tokens(self, formula: Callable[[Block], dict[str, Tensor]]) -> Advantages:
        """The result, filled block by block: the only loop over tokens.

        Args:
            formula: token fields of `Advantages` by name, for one block: [b, t], or [b, 1] for the same value on every
                token. They are set to 0, weights to 1, where the mask is False (``loss_mask_BT``, a bool, to False),
                and must be finite there, as a gap is. Details are kept where asked for.
        """
        tokens: dict[str, Any] = {}
        for block in self.batch.blocks:
            self._store(tokens, block, formula(block))  # in a call, so that one block's temporaries are alive at a time
        return Advantages(**tokens, **self._kept)

    def _store(self, tokens: dict[str, Tensor], block: Block, values: dict[str, Tensor]) -> None:
        mask = block.of(self.batch.mask_BT)
        for name, value in values.items():
            if name in DETAILS and not self.detail:
                continue
            rows, columns = mask.shape
            if tuple(value.shape) not in ((rows, columns), (rows, 1)):
                got = list(value.shape)  # torch might spread a [b] value along the tokens
                raise ScoreError(
                    f"{name}: got shape {got}, expected that of the block, {[rows, columns]}, or one column"
                )
            if name not in tokens:
                make = torch.ones_like if name == "weight_BT" else torch.zeros_like
                like = self.batch.mask_BT if name == "loss_mask_BT" else self.batch.old_logp_BT
                tokens[name] = make(like, memory_format=torch.contiguous_format)
            whole = block.of(tokens[name])
            if name == "weight_BT":
                whole.copy_(torch.where(mask, value, 1.0))
            else:
                torch.mul(value, mask, out=whole)  # several times faster than masked_fill or where

    def broadcast(self, value_B: Tensor) -> Advantages:
        """The result that gives every token of a response the response's advantage."""
        return self.tokens(lambda block: {"advantage_BT": self.column(value_B, block)})
