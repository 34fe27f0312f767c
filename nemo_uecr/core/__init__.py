"""The mathematics: pure functions of tensors that import only torch.

Shape letters: B = responses, P = prompts (groups), T = tokens (padded), N = tokens (packed), b x t = a block.
Log-probabilities and entropies are in nats. Group statistics are computed in float64 and stored as the scores are.
"""

from nemo_uecr.core.ecr import ecr_residual
from nemo_uecr.core.loss import PolicyLoss, policy_loss
from nemo_uecr.core.methods import method_advantage, uecr_advantage
from nemo_uecr.core.puu import UnifiedAdvantage, teacher_reward, unified_advantage
from nemo_uecr.core.records import Advantages, ScoredBatch

__all__ = [
    "Advantages", "PolicyLoss", "ScoredBatch", "UnifiedAdvantage", "ecr_residual", "method_advantage", "policy_loss",
    "teacher_reward", "uecr_advantage", "unified_advantage",
]  # fmt: skip
