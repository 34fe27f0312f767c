"""The registry of methods: one line each, with what a method asks of a configuration and of the models.

To add a method: a file in ``nemo_uecr/core/methods`` that defines it, and one line in `ADDED` below. The configuration
reads the same lines, so everything here is free of torch; equation, identities and computation stand in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nemo_uecr.errors import ConfigError

__all__ = ["ADDED", "GROUP", "PAPER", "REGISTRY", "TEACHER", "Entry", "Parameter"]

#: Keys of the configuration that change a report and no advantage.
OUTSIDE_CORE = frozenset({"scoring_noise", "turn_separator"})
#: Settings that the run fills in; no key of the configuration.
FROM_THE_RUN = frozenset({"step", "seed"})


@dataclass(frozen=True)
class Parameter:
    """A number of one method's own, `method.parameters.NAME`: its default and the range it is legal in."""

    default: float
    low: float
    high: float

    def check(self, key: str, value: float) -> None:
        """Refuse a value outside the range."""
        if not self.low <= value <= self.high:
            raise ConfigError(f"{key}: got {value:g}, expected a number from {self.low:g} to {self.high:g}")


@dataclass(frozen=True)
class Entry:
    """A method's line.

    Attributes:
        name: key of ``method.name``; the file defines a `Method` of this name in capitals.
        file: module in ``nemo_uecr/core/methods``.
        settings: keys under ``method`` that change what it computes or reports; the run fills in ``step`` and ``seed``.
        scores: scores of other models that it reads: ``teacher_logp``, ``teacher_entropy``, ``initial_logp``. A model
            whose scores it does not read is never loaded for it.
        parameters: numbers of its own.
    """

    name: str
    file: str
    settings: frozenset[str]
    scores: frozenset[str]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    @property
    def core_settings(self) -> frozenset[str]:
        """Names of the fields of `core.records.Settings` that the computation reads."""
        return frozenset("sample_std" if key == "std" else key for key in self.settings - OUTSIDE_CORE)

    @property
    def config_settings(self) -> frozenset[str]:
        """Names of the keys under ``method`` that the configuration states."""
        return self.settings - FROM_THE_RUN

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher is loaded."""
        return bool(self.scores & {"teacher_logp", "teacher_entropy"})

    @property
    def needs_initial(self) -> bool:
        """Whether the initial student is scored at temperature 1, reference KL or not."""
        return "initial_logp" in self.scores


NONE = frozenset[str]()
GROUP = frozenset({"std", "std_floor", "scoring_noise"})
UNIFIED = GROUP | {"alpha"}
ECR = UNIFIED | {"rho", "tau_delta", "tau_entropy"}
TEACHER = frozenset({"teacher_logp"})
ENTROPY = TEACHER | {"teacher_entropy"}

#: The paper's method, its baselines and its ablations.
PAPER = (
    Entry("grpo", "grpo", GROUP, NONE),
    Entry("pg_opd", "opd", NONE, TEACHER),
    Entry("grpo_plus_opd", "opd", GROUP | {"opd_coef"}, TEACHER),
    Entry("distilled_rl", "distilled_rl", GROUP, TEACHER),
    Entry("atod", "atod", GROUP | {"step", "turn_separator"}, TEACHER),
    Entry("separate_norm", "unified", UNIFIED, TEACHER),
    Entry("puu", "unified", UNIFIED, TEACHER),
    Entry("uecr", "uecr", ECR, ENTROPY),
    Entry("ecr_no_entropy", "uecr", ECR - {"tau_entropy"}, TEACHER),
    Entry("ecr_no_projection", "uecr", ECR, ENTROPY),
    Entry("ecr_full_advantage", "uecr", ECR, ENTROPY),
    Entry("ecr_alpha_zero", "uecr", ECR - {"alpha"}, ENTROPY),
    Entry("ecr_no_gap", "uecr", ECR - {"tau_delta"}, ENTROPY),
    Entry("shuffled_entropy", "uecr", ECR | {"seed"}, ENTROPY),
)

#: Methods that are not in the paper: a line here and a file make one.
ADDED = (
    Entry("rlsd", "rlsd", GROUP, TEACHER, {"mix": Parameter(0.5, 0, 1), "bound": Parameter(0.2, 0, 0.99)}),
    Entry("g_opd", "g_opd", NONE, TEACHER | {"initial_logp"}, {"extrapolation": Parameter(1.25, 0, 10)}),
)

REGISTRY: dict[str, Entry] = {entry.name: entry for entry in (*PAPER, *ADDED)}
