"""The registry of methods: one line each, with everything that is declared about a method.

To add a method, write a function of its name in ``nemo_uecr/core/methods`` and a line in `ADDED` below. The
configuration, the plan and the report read these lines without loading torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nemo_uecr.errors import ConfigError

#: Keys of the configuration that change a report but no advantage.
OUTSIDE_CORE = frozenset({"scoring_noise", "turn_separator"})
#: Settings that the run fills in; no key of the configuration.
FROM_THE_RUN = frozenset({"step", "seed", "total_steps", "state"})


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


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A method's line.

    Attributes:
        name: value of ``method.name``, and the name of the method's function.
        file: module in ``nemo_uecr/core/methods`` with the function.
        equation: the token advantage on one line.
        provenance: where the equation comes from, and what is not in the paper.
        settings: keys under ``method`` that change what it computes or reports; the run fills in ``step``, ``seed``,
            ``total_steps`` and the carried ``state``.
        scores: scores that it reads beside log pi_old: ``teacher_logp``, ``teacher_entropy``, ``initial_logp``,
            ``student_entropy``. A model whose scores no one reads is never loaded.
        identities: names in `nemo_uecr.core.invariants.IDENTITIES` that must hold; a violation stops the run.
        monitored: names there that are logged and never stop a run.
        parameters: numbers of its own.
        compares: whether it compares the responses of a group, so that a group of one cannot be used.
    """

    name: str
    file: str
    equation: str
    provenance: str
    settings: frozenset[str]
    scores: frozenset[str]
    identities: tuple[str, ...]
    monitored: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    compares: bool = True

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
    def normalises_teacher(self) -> bool:
        """Whether R^T is divided by a group's standard deviation, which enlarges its noise where the group is flat."""
        return self.settings >= UNIFIED

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
#: What zero-sum weights promise: unit mean, |q| <= 1, the task component's sign, and PUU's exact decomposition.
CONSERVING = ("finite", "decomposition", "budget", "residual_bound", "sign_kept")

#: The paper's method, its baselines and its ablations.
PAPER = (
    Entry(
        name="grpo", file="baselines", settings=GROUP, scores=NONE, identities=("finite",),
        equation="A = A^GRPO = (R^task - mean) / (Std(R^task) + eps), the same on every token",
        provenance="eq:grpo-adv; the standard deviation's form and eps follow the paper's audits",
    ),
    Entry(
        name="pg_opd", file="baselines", settings=NONE, scores=TEACHER, identities=("finite",),
        equation="A = clip(delta, -5, 5)", compares=False,
        provenance="eq:teacher-token-reward as the advantage; the clip is not in the paper",
    ),
    Entry(
        name="grpo_plus_opd", file="baselines", settings=GROUP | {"opd_coef"}, scores=TEACHER, identities=("finite",),
        equation="A = A^GRPO, A_opd = clip(delta, -5, 5)",
        provenance="the paper's naive hybrid; coefficient and gap clip are not in the paper",
    ),
    Entry(
        name="distilled_rl", file="baselines", settings=GROUP, scores=TEACHER, identities=("finite", "log_weight"),
        monitored=("budget",),
        equation="A = w A^GRPO; w = clip(pi_T/pi_old, 1/3, 3) / its geometric mean where A^GRPO > 0, else 1",
        provenance="the paper's appendix on closest methods; the bound 3 is from that method's own scripts",
    ),
    Entry(
        name="atod", file="baselines", settings=GROUP | {"step", "turn_separator"}, scores=TEACHER,
        identities=("finite",),
        equation="A = kappa(s) w_turn delta + rho(s) A^GRPO; kappa 1 to 0.1 and rho 1 to 2 over 80 steps",
        provenance="the paper's appendix on closest methods; schedule figures are second-hand; one turn gives w_turn "
        "0.75",
    ),
    Entry(
        name="separate_norm", file="uecr", settings=UNIFIED, scores=TEACHER, identities=("finite",),
        equation="A = norm(R^task) + alpha norm(R^T), each over its own standard deviation",
        provenance="tab:component-ablation, 'Separate norm.'",
    ),
    Entry(
        name="puu", file="uecr", settings=UNIFIED, scores=TEACHER, identities=("finite", "decomposition"),
        equation="A = A^U = (R^U - mean) / (Std(R^U) + eps), R^U = R^task + alpha R^T",
        provenance="eq:unified-reward, eq:unified-advantage; the clip of R^T follows eq:app-puu-audit-reward",
    ),
    Entry(
        name="uecr", file="uecr", settings=ECR, scores=ENTROPY, identities=CONSERVING,
        equation="A = A^U + rho A^task|U q; q = 1/2 c (d - mu), d = tanh(s delta / 2 tau_delta), c = exp(-H / "
        "tau_entropy)",
        provenance="eq:local-signal, eq:projection-weights, eq:final-advantage",
    ),
    Entry(
        name="ecr_no_entropy", file="uecr", settings=ECR - {"tau_entropy"}, scores=TEACHER, identities=CONSERVING,
        equation="UECR with c = 1 and the projection recomputed",
        provenance="tab:component-ablation, 'w/o entropy'",
    ),
    Entry(
        name="ecr_no_projection", file="uecr", settings=ECR, scores=ENTROPY, identities=("finite", "decomposition"),
        monitored=("budget",),
        equation="UECR with mu = 0, so q = 1/2 c d and the response's task budget moves",
        provenance="tab:component-ablation, 'w/o projection'",
    ),
    Entry(
        name="ecr_full_advantage", file="uecr", settings=ECR, scores=ENTROPY, identities=CONSERVING,
        equation="A = A^U (1 + rho q): the weight multiplies the whole unified advantage",
        provenance="the paper's additional controls, item 4",
    ),
    Entry(
        name="ecr_alpha_zero", file="uecr", settings=ECR - {"alpha"}, scores=ENTROPY, identities=CONSERVING,
        equation="UECR with alpha = 0: A = A^GRPO (1 + rho q)",
        provenance="the paper's additional controls, item 5",
    ),
    Entry(
        name="ecr_no_gap", file="uecr", settings=ECR - {"tau_delta"}, scores=ENTROPY, identities=CONSERVING,
        equation="UECR with q = 1/2 s (c - mean(c)): confidence alone gives the direction",
        provenance="the paper's additional controls, item 6; the form is not in the paper (its literal d = s gives "
        "q = 0)",
    ),
    Entry(
        name="shuffled_entropy", file="uecr", settings=ECR | {"seed"}, scores=ENTROPY, identities=CONSERVING,
        equation="UECR with the teacher entropies permuted within each response",
        provenance="the permutation control of the credit-localization audit",
    ),
)  # fmt: skip

#: Methods that are not in the paper.
ADDED = (
    Entry(
        name="rlsd", file="rlsd", settings=GROUP, scores=TEACHER, identities=("finite", "sign_kept"),
        monitored=("budget",), parameters={"mix": Parameter(0.5, 0, 1), "bound": Parameter(0.2, 0, 0.99)},
        equation="A = A^GRPO (1 - mix + mix clip(exp(sign(A^GRPO) delta), 1 - bound, 1 + bound))",
        provenance="arXiv 2604.03128, whose teacher is the student with the answer in view; ms-swift's mix and bound",
    ),
    Entry(
        name="g_opd", file="g_opd", settings=NONE, scores=TEACHER | {"initial_logp"}, identities=("finite",),
        parameters={"extrapolation": Parameter(1.25, 0, 10)}, compares=False,
        equation="A = clip(extrapolation (log pi_T - log pi_0) - (log pi_old - log pi_0), -5, 5), pi_0 the initial "
        "student",
        provenance="G-OPD; its authors' ExOPD has extrapolation 1.25; the clip is pg_opd's and not theirs",
    ),
    Entry(
        name="saf_opd", file="saf_opd", settings=GROUP | {"step", "total_steps", "state"}, scores=TEACHER,
        identities=("finite",),
        parameters={
            "keep": Parameter(0.2, 0.001, 1), "bound": Parameter(0.1, 0, 10), "warmup": Parameter(100, 1, 100_000),
        },
        equation="A = A^GRPO + c(s) M bound tanh(delta); M keeps the largest gaps of a response; c warms up, then "
        "anneals to 0",
        provenance="SAF-OPD's own code, kissshhot/SAF-OPD; there the KL is the loss's of the step before, here the "
        "batch's mean of -delta",
    ),
    Entry(
        name="top_d", file="top_d", settings=NONE, scores=TEACHER, identities=("finite",),
        parameters={"mix": Parameter(0.5, 0.001, 0.999)},
        equation="A = (R - mean) / (Std + eps) over the group's tokens; R = r + mean of later r; r = log(mix "
        "pi_T/pi_old + 1 - mix)",
        provenance="arXiv 2607.04751 as PrimeIntellect-ai/prime-rl#2966 has it; the default of mix is ours",
    ),
    Entry(
        name="iw_opd", file="iw_opd", settings=NONE, scores=TEACHER, identities=("finite",), monitored=("budget",),
        parameters={"amplification": Parameter(0.5, 0, 100)}, compares=False,
        equation="A = delta (1 + amplification (1 - sum of earlier |delta| / sum |delta|))",
        provenance="arXiv 2606.22600 as TRL 1.16 has it (iw_opd_gamma)",
    ),
    Entry(
        name="opsa_control", file="opsa", settings=NONE, scores=NONE, identities=("finite",),
        parameters={"share": Parameter(0.2, 0.001, 1)}, compares=False,
        equation="A = -1/2 on the share of the batch's tokens with the lowest log pi_old; the others leave the loss",
        provenance="the control of OPSA, arXiv 2608.31046: no teacher and no verifier; by its authors' repository",
    ),
    Entry(
        name="opsa", file="opsa", settings=NONE, scores=frozenset({"student_entropy"}), identities=("finite",),
        parameters={"share": Parameter(0.2, 0.001, 1)}, compares=False,
        equation="A = -1/2 - 1/2 (H - min) / (max - min) on opsa_control's tokens, H the student's entropy",
        provenance="OPSA, arXiv 2608.31046, by its authors' repository",
    ),
)  # fmt: skip

REGISTRY: dict[str, Entry] = {entry.name: entry for entry in (*PAPER, *ADDED)}
