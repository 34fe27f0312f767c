"""OPSA and its control: a negative advantage on the least likely tokens of the batch, without teacher or verifier."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import Advantages, Block

#: The advantage of every selected token, and how much the one of the highest entropy has beyond it.
PENALTY, BY_ENTROPY = -0.5, -0.5


def opsa_control(view: View, *, share: float) -> Advantages:
    """``A = -1/2`` on the share of the batch's tokens with the lowest log pi_old; the others leave the loss."""
    selected_BT = lowest(view, share)

    def tokens(block: Block) -> dict[str, Tensor]:
        mask = block.of(selected_BT)
        return {"advantage_BT": torch.full((len(mask), 1), PENALTY, device=mask.device), "loss_mask_BT": mask}

    return view.tokens(tokens)


def opsa(view: View, *, share: float) -> Advantages:
    """``A = -1/2 - 1/2 (H - min H) / (max H - min H)`` on the same tokens, H the student's entropy on all of them."""
    selected_BT, entropy_BT = lowest(view, share), view.batch.scores("student_entropy")
    for block in view.batch.blocks:
        view.score("student_entropy", block)  # refuses what is not finite
    low, high = entropy_BT[selected_BT].aminmax()

    def tokens(block: Block) -> dict[str, Tensor]:
        mask = block.of(selected_BT)
        entropy = torch.where(mask, block.of(entropy_BT), low)
        scaled = (entropy - low) / (high - low) if high > low else torch.zeros_like(entropy)
        return {"advantage_BT": PENALTY + BY_ENTROPY * scaled, "loss_mask_BT": mask}

    return view.tokens(tokens)


def lowest(view: View, share: float) -> Tensor:
    """[B, T] bool: the ``floor(share N)`` of the N sampled tokens with the lowest log pi_old, at least one."""
    batch = view.batch
    for block in batch.blocks:
        view.score("old_logp", block)
    order_N = batch.old_logp_BT[batch.mask_BT].argsort(stable=True)
    chosen_N = torch.zeros_like(order_N, dtype=torch.bool)
    chosen_N[order_N[: max(1, int(share * len(order_N)))]] = True
    return torch.zeros_like(batch.mask_BT).masked_scatter(batch.mask_BT, chosen_N)
