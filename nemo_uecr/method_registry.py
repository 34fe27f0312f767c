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
#: What the lines below may name.
SETTINGS = OUTSIDE_CORE | FROM_THE_RUN | {"alpha", "rho", "tau_delta", "tau_entropy", "std", "std_floor", "opd_coef"}
SCORES = frozenset({"teacher_logp", "teacher_entropy", "initial_logp"})


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

    def __post_init__(self) -> None:
        """Refuse a line that would be read as something else: a misspelt score would leave the teacher unloaded."""
        _check_names(self.name, "settings", self.settings, SETTINGS)
        _check_names(self.name, "scores", self.scores, SCORES)
        for name, parameter in self.parameters.items():
            _check_parameter(self.name, name, parameter)

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


def _check_names(method: str, what: str, given: object, known: frozenset[str]) -> None:
    odd = sorted(given - known) if isinstance(given, frozenset) else given
    if odd != []:
        raise ConfigError(
            f"method {method}: its line has the {what} {odd!r}; expected a frozenset of {', '.join(sorted(known))}"
        )


def _check_parameter(method: str, name: str, given: object) -> None:
    if not isinstance(given, Parameter):
        raise ConfigError(
            f"method {method}: its line has {given!r} for parameter {name}; expected Parameter(default, low, high)"
        )


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


def by_name(entries: tuple[Entry, ...]) -> dict[str, Entry]:
    """The lines by their names, in order.

    Raises:
        ConfigError: If two lines have one name.
    """
    found: dict[str, Entry] = {}
    for entry in entries:
        if found.setdefault(entry.name, entry) is not entry:
            raise ConfigError(f"method {entry.name}: two lines of method_registry.py have this name; expected one")
    return found


REGISTRY: dict[str, Entry] = by_name((*PAPER, *ADDED))
