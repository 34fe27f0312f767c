"""What each method asks of the configuration. Torch-free; a test holds it equal to the registry in `core`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["METHOD_NEEDS", "OPTIONAL_SETTINGS", "REQUIRED_SETTINGS", "MethodNeeds", "needs_of"]

REQUIRED_SETTINGS = ("alpha", "rho", "tau_delta", "tau_entropy")
"""Settings without a default in code: the configuration states them for every method that uses them."""

OPTIONAL_SETTINGS = ("std_floor", "opd_coef", "std", "scoring_noise", "turn_separator")
"""Settings of `method` that have a default; a method outside their scope ignores them."""


@dataclass(frozen=True)
class MethodNeeds:
    """What one method reads from the configuration."""

    settings: frozenset[str]
    """Names of the keys under `method` that change what this method computes or reports."""

    teacher: bool
    """Whether teacher scores are read; where False no teacher is ever loaded."""


def _needs(*settings: str, teacher: bool) -> MethodNeeds:
    return MethodNeeds(settings=frozenset(settings), teacher=teacher)


_GROUP = ("std", "std_floor", "scoring_noise")
_UNIFIED = ("alpha", *_GROUP)

METHOD_NEEDS: dict[str, MethodNeeds] = {
    "grpo": _needs(*_GROUP, teacher=False),
    "pg_opd": _needs(teacher=True),
    "grpo_plus_opd": _needs(*_GROUP, "opd_coef", teacher=True),
    "distilled_rl": _needs(*_GROUP, teacher=True),
    "atod": _needs(*_GROUP, "turn_separator", teacher=True),
    "separate_norm": _needs("alpha", *_GROUP, teacher=True),
    "puu": _needs(*_UNIFIED, teacher=True),
    "uecr": _needs(*_UNIFIED, "rho", "tau_delta", "tau_entropy", teacher=True),
    "ecr_no_entropy": _needs(*_UNIFIED, "rho", "tau_delta", teacher=True),
    "ecr_no_projection": _needs(*_UNIFIED, "rho", "tau_delta", "tau_entropy", teacher=True),
    "ecr_full_advantage": _needs(*_UNIFIED, "rho", "tau_delta", "tau_entropy", teacher=True),
    "ecr_alpha_zero": _needs(*_GROUP, "rho", "tau_delta", "tau_entropy", teacher=True),
    "ecr_no_gap": _needs(*_UNIFIED, "rho", "tau_entropy", teacher=True),
    "shuffled_entropy": _needs(*_UNIFIED, "rho", "tau_delta", "tau_entropy", teacher=True),
}


def needs_of(method: str) -> MethodNeeds:
    """The needs of a method whose name the schema has accepted."""
    return METHOD_NEEDS[method]
