"""What a method is: a frozen class of settings, and one function of plain tensors.

Importing a method loads no torch, so that configuration, plan and report can read what it declares.

Legend: B responses, T tokens (padded).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_type_hints

from nemo_uecr.core import EPSILON
from nemo_uecr.errors import ConfigError
from nemo_uecr.ranges import NonNegative, Positive, Range

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.record import ScoredBatch

#: Public names of the fields of `Advantages` that the loss reads.
LOSS_TENSORS = frozenset({"advantage", "advantage_opd", "loss_mask"})
#: Token fields of `Advantages` for reports and identities.
DETAILS = ("weight_BT", "residual_BT", "direction_BT", "confidence_BT")


@dataclass(frozen=True)
class RunState:
    """What the run gives a method beside the batch."""

    #: Completed training steps, and those of the whole run.
    step: int = 0
    total_steps: int = 1
    #: Another at each step.
    seed: int = 0
    #: What the method returned as ``state`` one step earlier; empty at the first.
    state: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low in (("step", 0), ("total_steps", 1), ("seed", 0)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected {low} or more")


@dataclass(frozen=True)
class Advantages:
    """What a method returns; None where it has no such quantity.

    A method may leave the places outside the mask as they are and give one column [B, 1] for the same value on every
    token: `core.functions.compute` sets advantages, and all token fields but the weight, to 0 there, the weight to 1.
    """

    #: Advantage of the (first) clipped surrogate.
    advantage_BT: Tensor
    #: Advantage of the second surrogate.
    advantage_opd_BT: Tensor | None = None
    #: bool, the sampled tokens in the loss; the others leave its numerator, the reference KL's included, and its
    #: denominator. None where all are in it.
    loss_mask_BT: Tensor | None = None
    #: Token weight w, residual q, direction d and confidence c.
    weight_BT: Tensor | None = None
    residual_BT: Tensor | None = None
    direction_BT: Tensor | None = None
    confidence_BT: Tensor | None = None
    #: The response mean mu^c that the projection subtracts.
    centre_B: Tensor | None = None
    #: A^U, A^task|U (methods without PUU: their task advantage) and A^T|U.
    advantage_unified_B: Tensor | None = None
    advantage_task_B: Tensor | None = None
    advantage_teacher_B: Tensor | None = None
    #: R^T, nats.
    teacher_reward_B: Tensor | None = None
    #: Group standard deviation of the normalised reward, before floor and eps.
    unified_std_B: Tensor | None = None
    #: What the method carries over to the next step's `RunState.state`; telemetry has what has a line ``trust/NAME``.
    state: Mapping[str, float] | None = None

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor that is present, by its public name (the keys of ``nemo-uecr replay``)."""
        tensors = {name: value for name, value in vars(self).items() if value is not None and name != "state"}
        return {name.removesuffix("_BT").removesuffix("_B"): tensor for name, tensor in tensors.items()}

    def loss_tensors(self) -> dict[str, Tensor]:
        """What the loss reads, by public name: a back end uses all of it, and a saved batch keeps it."""
        return {name: tensor for name, tensor in self.named_tensors().items() if name in LOSS_TENSORS}

    def trained(self, mask_BT: Tensor) -> Tensor:
        """[B, T] bool, which of the sampled tokens ``mask_BT`` are in the loss."""
        return mask_BT if self.loss_mask_BT is None else self.loss_mask_BT


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of the methods: the fields of a subclass are its settings, keys under ``method`` in a configuration.

    A subclass is a dataclass of the same kind. Its docstring begins with its equation on one line.
    """

    #: Value of ``method.name``.
    name: ClassVar[str]
    #: Where the equation comes from, and what of it is not in the paper.
    source: ClassVar[str]
    #: Scores that it reads beside log pi_old. A model whose scores no one reads is never loaded.
    reads: ClassVar[frozenset[str]] = frozenset()
    #: Fields of `RunState` that it reads.
    reads_run: ClassVar[tuple[str, ...]] = ()
    #: Names in `core.invariants.IDENTITIES` that must hold, a violation stops the run; and those that are only logged.
    identities: ClassVar[tuple[str, ...]] = ("finite",)
    monitored: ClassVar[tuple[str, ...]] = ()
    #: Whether it compares the responses of a group, so that a group of one cannot be used.
    needs_group: ClassVar[bool] = True
    #: Raised when a shipped method gets another equation: what an earlier one made is not continued or repeated.
    revision: ClassVar[int] = 1
    #: Digest of the user's file that the class comes from; None for a shipped method.
    file_sha256: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value, allowed = getattr(self, each.name), self.ranges()[each.name]
            if isinstance(each.default, bool) and not isinstance(value, bool):
                raise ConfigError(f"{each.name} is {value!r}; expected True or False")
            if allowed is not None and value is not None and value not in allowed:
                raise ConfigError(f"{each.name} is {value}; expected {allowed}")

    @classmethod
    @cache
    def ranges(cls) -> dict[str, Range | None]:
        """The range of each setting that is a number, None for the others."""
        hints, found = get_type_hints(cls, include_extras=True), dict[str, Range | None]()
        for each in fields(cls):
            kinds = (hints[each.name], *get_args(hints[each.name]))
            found[each.name] = next((kind.__metadata__[0] for kind in kinds if hasattr(kind, "__metadata__")), None)
        return found

    @classmethod
    def required(cls) -> tuple[str, ...]:
        """The settings without a default."""
        return tuple(each.name for each in fields(cls) if each.default is MISSING)

    @classmethod
    def equation(cls) -> str:
        """The token advantage on one line."""
        return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split()).rstrip(".")

    @classmethod
    def needs_teacher(cls) -> bool:
        """Whether a teacher is loaded."""
        return bool(cls.reads & {"teacher_logp", "teacher_entropy"})

    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def opd_coef(self) -> float | None:
        """Weight of the second surrogate in the loss, None without one."""
        return None

    def __call__(self, batch: ScoredBatch) -> Advantages:
        """The token advantages."""
        raise NotImplementedError


TEACHER = frozenset({"teacher_logp"})
ENTROPY = TEACHER | {"teacher_entropy"}


@dataclass(frozen=True, kw_only=True)
class Grouped(Method):
    """Base of the methods that normalise a reward within its group."""

    std_floor: NonNegative = 0.0  # Smallest standard deviation that a group is divided by; 0: the paper's form.
    sample_std: bool = False  # Whether the group's variance is divided by G - 1 in place of G.
    # Noise in R^U that comes from scoring alone; `nemo-uecr audit teacher` measures it for R^T. Telemetry counts the
    # groups whose standard deviation lies below it, or below 1e-3 where it is null; no advantage depends on it.
    scoring_noise: Positive | None = None

    @property
    def noise(self) -> float:
        """The scoring noise that telemetry compares with."""
        return 1e-3 if self.scoring_noise is None else self.scoring_noise

    def divisor(self, std_B: Tensor) -> Tensor:
        """``max(sigma, std_floor) + eps``, the divisor of every group-normalised advantage."""
        return std_B.clamp_min(self.std_floor) + EPSILON

    def normalised(self, batch: ScoredBatch, value_B: Tensor) -> tuple[Tensor, Tensor]:
        """``(x - mean) / (max(std, floor) + eps)`` within each group, and the std; [B] float64 each (eq:grpo-adv)."""
        centred_B = batch.groups.centre(value_B)
        std_B = batch.groups.std(centred_B, sample=self.sample_std)
        return centred_B / self.divisor(std_B), std_B
