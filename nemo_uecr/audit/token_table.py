"""All tokens of one checkpoint in one place, and its groups as the records that the methods read.

A part of the scores may split a group, so advantages are computed from here and never part by part.

Shape legend: B = responses of the checkpoint, N = their tokens in a flat list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nemo_uecr.audit.groups import pure_groups
from nemo_uecr.audit.rollouts import Scores
from nemo_uecr.core.records import ScoredBatch
from nemo_uecr.errors import DataError

Array = np.ndarray


@dataclass(frozen=True)
class TokenTable:
    """Tokens of one checkpoint's responses.

    Attributes:
        rows: [B] which responses of the scores, in the order of the tokens.
        offsets: [B + 1] first token of each response.
        token_ids: [N].
        teacher_logp: [N] float32 nats.
        teacher_entropy: [N] float32 nats.
        teacher_top1: [N] bool.
        anchor_logp: [N] float32 nats.
        reward_B: [B] float64 verifier reward.
        group_B: [B] group number.
        problem_B: [B] problem number.
        ids: names of the responses.
    """

    rows: Array
    offsets: Array
    token_ids: Tensor
    teacher_logp: Tensor
    teacher_entropy: Tensor
    teacher_top1: Tensor
    anchor_logp: Tensor
    reward_B: Array
    group_B: Array
    problem_B: Array
    ids: tuple[str, ...]

    def span(self, row: int) -> slice:
        """The tokens of a response."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    def group_batches(self) -> Iterator[tuple[Array, ScoredBatch]]:
        """Every group: its rows [b] in this table, and its packed record in float64."""
        order = np.argsort(self.group_B, kind="stable")
        _, counts = np.unique(self.group_B, return_counts=True)
        for rows in np.split(order, np.cumsum(counts)[:-1]):
            yield rows, self.batch(rows)

    def batch(self, rows: Array) -> ScoredBatch:
        """Whole groups as one packed record in float64."""
        spans = [self.span(int(row)) for row in rows]
        lengths = torch.tensor([span.stop - span.start for span in spans])

        def packed(value_N: Tensor) -> Tensor:
            return torch.cat([value_N[span] for span in spans]).double()

        return ScoredBatch(
            task_reward_B=torch.from_numpy(self.reward_B[rows]),
            group_B=torch.from_numpy(self.group_B[rows]),
            mask_BT=torch.ones(int(lengths.sum()), dtype=torch.bool),
            old_logp_BT=packed(self.anchor_logp),
            teacher_logp_BT=packed(self.teacher_logp),
            teacher_entropy_BT=packed(self.teacher_entropy),
            offsets=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]),
            sample_ids=tuple(self.ids[row] for row in rows),
        )


def token_table(scores: Scores, anchor: str, checkpoint: int) -> TokenTable:
    """Load the tokens of one checkpoint.

    Raises:
        DataError: If the checkpoint was not scored, or a group mixes checkpoints or problems.
    """
    found = scores.responses
    reward_B = found.verified_rewards()
    pure_groups(found.group_B, found.checkpoint_B, found.problem_B)
    names = ("token_ids", "teacher_logp", "teacher_entropy", "teacher_top1", "anchor_logp")
    collected: dict[str, list[Tensor]] = {name: [] for name in names}
    kept = []
    for tokens in scores.tokens(anchor):
        own_b = found.checkpoint_B[tokens.rows] == checkpoint
        if not own_b.any():
            continue
        kept.append(np.arange(tokens.rows.start, tokens.rows.stop)[own_b])
        chosen_N = torch.from_numpy(own_b).repeat_interleave(tokens.offsets.diff())
        for name in names:
            collected[name].append(getattr(tokens, name)[chosen_N])
    if not kept:
        known = ", ".join(map(str, found.checkpoints))
        raise DataError(f"{scores.folder} has no response of checkpoint {checkpoint}; expected one of {known}")
    rows = np.concatenate(kept)
    return TokenTable(
        rows=rows,
        offsets=np.concatenate([[0], np.cumsum(found.scored_B[rows])]),
        **{name: torch.cat(parts) for name, parts in collected.items()},
        reward_B=reward_B[rows],
        group_B=found.group_B[rows],
        problem_B=found.problem_B[rows],
        ids=tuple(found.ids[row] for row in rows),
    )
