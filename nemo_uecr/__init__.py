"""UECR-GRPO: on-policy distillation unified with GRPO.

The functions below take plain tensors. Importing this package
loads neither torch nor transformers: each name loads what it needs on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_uecr.core.functions import (
        ecr_residual,
        method_advantage,
        teacher_reward,
        uecr_advantage,
        unified_advantage,
    )
    from nemo_uecr.core.loss import PolicyLoss, policy_loss
    from nemo_uecr.core.methods import Advantages, RunState
    from nemo_uecr.core.methods.uecr import UnifiedAdvantage
    from nemo_uecr.core.record import ScoredBatch
    from nemo_uecr.scoring.dense import token_logp, token_scores
    from nemo_uecr.scoring.records import TokenScores

__all__ = [
    "Advantages", "PolicyLoss", "RunState", "ScoredBatch", "TokenScores", "UnifiedAdvantage", "__version__",
    "ecr_residual", "method_advantage", "policy_loss", "teacher_reward", "token_logp", "token_scores", "uecr_advantage",
    "unified_advantage",
]  # fmt: skip

__version__ = "0.4.0"

_HOMES = {
    "Advantages": "core.methods", "RunState": "core.methods", "PolicyLoss": "core.loss", "policy_loss": "core.loss",
    "ScoredBatch": "core.record", "UnifiedAdvantage": "core.methods.uecr", "TokenScores": "scoring.records",
    "token_logp": "scoring.dense", "token_scores": "scoring.dense",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'core.functions')}"), name)


def __dir__() -> list[str]:
    return __all__
