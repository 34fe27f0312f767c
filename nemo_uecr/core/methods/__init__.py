"""The methods by name. To add one: a file here that defines a `Method`, and a line below."""

from __future__ import annotations

from nemo_uecr.core.methods.atod import ATOD
from nemo_uecr.core.methods.base import Method
from nemo_uecr.core.methods.distilled_rl import DISTILLED_RL
from nemo_uecr.core.methods.grpo import GRPO
from nemo_uecr.core.methods.opd import GRPO_PLUS_OPD, PG_OPD
from nemo_uecr.core.methods.uecr import (
    ECR_ALPHA_ZERO,
    ECR_FULL_ADVANTAGE,
    ECR_NO_ENTROPY,
    ECR_NO_GAP,
    ECR_NO_PROJECTION,
    SHUFFLED_ENTROPY,
    UECR,
)
from nemo_uecr.core.methods.unified import PUU, SEPARATE_NORM

__all__ = ["METHODS", "Method"]

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        GRPO,
        PG_OPD,
        GRPO_PLUS_OPD,
        DISTILLED_RL,
        ATOD,
        SEPARATE_NORM,
        PUU,
        UECR,
        ECR_NO_ENTROPY,
        ECR_NO_PROJECTION,
        ECR_FULL_ADVANTAGE,
        ECR_ALPHA_ZERO,
        ECR_NO_GAP,
        SHUFFLED_ENTROPY,
    )
}
