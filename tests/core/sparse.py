"""A method that masks the loss, registered for one test: GRPO on the tokens of which the old policy was less sure."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from torch import Tensor

from nemo_uecr.core.methods import METHODS, Method
from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import Advantages, Block
from nemo_uecr.method_registry import GROUP, REGISTRY, Entry


def sparse(view: View) -> Advantages:
    """``A = A^GRPO`` on the sampled tokens below the median of log pi_old; the mask says nothing about padding."""
    old_BT = view.batch.old_logp_BT
    median = old_BT[view.batch.mask_BT].median()

    def tokens(block: Block) -> dict[str, Tensor]:
        return {"advantage_BT": view.column(view.grpo_B, block), "loss_mask_BT": ~(block.of(old_BT) >= median)}

    return view.tokens(tokens)


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it ``method.name=sparse``."""
    module = ModuleType("nemo_uecr.core.methods.sparse")
    module.sparse = sparse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = Entry(
        name="sparse", file="sparse", settings=GROUP, scores=frozenset(), identities=("finite",), equation="A = A^GRPO",
        provenance="",
    )  # fmt: skip
    monkeypatch.setitem(REGISTRY, "sparse", entry)
    monkeypatch.setitem(METHODS, "sparse", Method(**vars(entry)))
