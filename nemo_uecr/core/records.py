"""The records that every back end hands to the mathematics and gets back.

Shape legend: B = responses in the batch, T = tokens (padded), N = tokens of all responses (packed), b x t = a block.
Token fields are ``[B, T]``; in a packed batch they are ``[N]`` and ``offsets`` delimits the responses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.errors import ConfigError, ScoreError

#: Added to every group standard deviation (the paper's audits state the value).
EPSILON = 1e-6
#: R^T and the OPD advantage clip the gap to this many nats on both sides.
GAP_CLIP = 5.0
#: Rounding may leave a log-probability this far above 0.
LOGP_ROUNDING = 1e-3
#: Tokens in one block. On CPU the temporaries of a block stay in the second-level cache; a GPU wants few launches.
CPU_BLOCK_TOKENS = 65_536
GPU_BLOCK_TOKENS = 16_777_216
#: Token fields with log-probabilities or entropies, in nats.
SCORE_FIELDS = ("old_logp", "teacher_logp", "teacher_entropy", "initial_logp", "student_entropy")
#: Public names of the fields of `Advantages` that the loss reads.
LOSS_TENSORS = frozenset({"advantage", "advantage_opd", "loss_mask"})
#: What each setting must be, and the words for it in an error message.
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "alpha": (math.isfinite, "a finite number"),
    "rho": (lambda rho: 0.0 <= rho < 1.0, "0 <= rho < 1, so that every token weight stays positive"),
    "tau_delta": (lambda tau: 0.0 < tau < math.inf, "a finite positive number of nats"),
    "tau_entropy": (lambda tau: 0.0 < tau < math.inf, "a finite positive number of nats"),
    "std_floor": (lambda floor: 0.0 <= floor < math.inf, "0 or more"),
    "opd_coef": (math.isfinite, "a finite number"),
    "step": (lambda step: step >= 0, "0 or more"),
    "total_steps": (lambda steps: steps >= 1, "1 or more"),
    "seed": (lambda seed: seed >= 0, "0 or more"),
}


@dataclass(frozen=True)
class Block:
    """A rectangle of responses ``rows`` by the columns in which any of them has a sampled token."""

    rows: slice
    index: slice | tuple[slice, slice]
    packed: bool

    def of(self, tokens: Tensor) -> Tensor:
        """The [b, t] view of a [B, T] or packed [N] tensor."""
        view = tokens[self.index]
        return view.unsqueeze(0) if self.packed else view


@dataclass(frozen=True)
class Names:
    """What error messages call the rows of a [b, t] tensor, and the number of its first token."""

    row: Callable[[int], str] = "response {}".format
    first_token: int = 0


def rows(tokens: Tensor) -> Tensor:
    """A tensor of any leading shape as [b, t]."""
    return tokens.reshape(math.prod(tokens.shape[:-1]), tokens.shape[-1])


def numbered(group: Tensor | Sequence[Hashable], device: torch.device) -> Tensor:
    """[B] integer prompt identities: a tensor of them, of any shape, or the numbers of hashable ones."""
    if isinstance(group, Tensor):
        if group.is_floating_point():
            raise ScoreError(f"group has dtype {group.dtype}; expected integers: are rewards and groups swapped?")
        return group.reshape(-1)
    numbers: dict[Hashable, int] = {}
    keys = [each.item() if isinstance(each, Tensor) else each for each in group]
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys], dtype=torch.long, device=device)


def as_bool(mask: Tensor) -> Tensor:
    """A bool or integer mask as bool; a float one may be additive, whose zeros are the tokens to keep."""
    if mask.is_floating_point():
        raise ScoreError(f"mask has dtype {mask.dtype}; expected bool or integer: if these are 1 and 0, pass mask == 1")
    if mask.dtype != torch.bool and bool(((mask != 0) & (mask != 1)).any()):
        raise ScoreError(f"mask has values from {int(mask.min())} to {int(mask.max())}; expected 0 and 1")
    return mask.bool()


def check_scores(mask: Tensor, **scores: Tensor | None) -> Tensor:
    """The mask as bool; refuse scores of another shape, or of a type that loses the gap."""
    given = {name: tensor for name, tensor in scores.items() if tensor is not None}
    dtype = next(iter(given.values())).dtype
    for name, tensor in given.items():
        if tensor.shape != mask.shape:
            raise ScoreError(f"{name} has shape {list(tensor.shape)}; expected {list(mask.shape)}, the shape of mask")
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ScoreError(
                f"{name} has dtype {tensor.dtype}; expected float32, or float64 throughout: bf16 scores lose the gap "
                "between teacher and student"
            )
        if tensor.dtype != dtype:
            raise ScoreError(f"{name} has dtype {tensor.dtype}; expected {dtype}, as {next(iter(given))} has")
    return as_bool(mask)


def check_per_response(shape: Sequence[int], name_of: Callable[[int], str] = Names().row, **values: Tensor) -> None:
    """Refuse rewards or advantages of another shape than one for each response, and those that are not finite."""
    for name, value in values.items():
        if value.shape != torch.Size(shape):
            raise ScoreError(f"{name} has shape {list(value.shape)}; expected {list(shape)}, one for each response")
        for row in (~value.reshape(-1).isfinite()).nonzero()[:1, 0].tolist():
            raise ScoreError(f"{name} of {name_of(row)} is {float(value.reshape(-1)[row])}; expected a finite number")


def not_empty(counts_B: Tensor, name: Callable[[int], str]) -> Tensor:
    """Return the counts of sampled tokens; refuse a response without any."""
    empty = (counts_B == 0).nonzero()
    if empty.numel():
        raise ScoreError(
            f"{name(int(empty[0]))} has no sampled token; expected at least one (an immediate end token counts). Drop "
            "the prompt's whole group or sample it again"
        )
    return counts_B


def check_finite(row_sums_b: Tensor, mask: Tensor, names: Names, **fields: Tensor) -> None:
    """Raise when a row sum is not finite or a log-probability is above 0, naming response, token and field.

    A float64 sum of float32 values is finite exactly when every value is. It waits for a GPU once.
    """
    limit = {name: LOGP_ROUNDING for name in fields if name.endswith("logp")}
    fine_b = row_sums_b.isfinite()
    for name in limit:
        fine_b &= ~((fields[name] > limit[name]) & mask).any(dim=1)
    if bool(fine_b.all()):
        return
    for name, values in fields.items():
        wrong = ~values.isfinite() | (values > limit.get(name, math.inf))
        for row, column in (wrong & mask).nonzero()[:1].tolist():
            raise ScoreError(
                f"{name} of {names.row(row)} at token {names.first_token + column} is {float(values[row, column])}; "
                "expected a finite number of nats, no log-probability above 0. Score the response again; scores are "
                "never filled in"
            )


@dataclass(frozen=True)
class ScoredBatch:
    """One step's responses with their rewards and token scores (docs/method.md, inputs of one step).

    Log-probabilities and entropies are at temperature 1, in nats, float32 or float64. Values of token fields where
    ``mask_BT`` is False are never read, NaN included.
    """

    #: Verifier reward R^task.
    task_reward_B: Tensor
    #: Integer prompt identity; groups may be ragged and in any order.
    group_B: Tensor
    #: bool, the sampled response tokens; may have holes.
    mask_BT: Tensor
    #: log pi_old(y_t).
    old_logp_BT: Tensor
    #: log pi_T(y_t).
    teacher_logp_BT: Tensor | None = None
    #: Full-vocabulary teacher entropy +H.
    teacher_entropy_BT: Tensor | None = None
    #: log pi_0(y_t) of the initial student (``g_opd`` only).
    initial_logp_BT: Tensor | None = None
    #: Full-vocabulary entropy +H of pi_old (``opsa`` only).
    student_entropy_BT: Tensor | None = None
    #: Integer turn label of each token (``atod`` only).
    segments_BT: Tensor | None = None
    #: [B + 1] token offsets of a packed batch; None when padded.
    offsets: Tensor | None = None
    #: Names of the responses for error messages.
    sample_ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse shapes and types that no method could use: a ScoreError that names the field."""
        reward_B, mask, responses = self.task_reward_B, self.mask_BT, self.responses
        if reward_B.ndim != 1 or responses == 0 or self.group_B.shape != reward_B.shape:
            raise ScoreError(
                f"task_reward has shape {list(reward_B.shape)} and group {list(self.group_B.shape)}; expected [B], one "
                "value for each of at least two responses"
            )
        check_per_response(reward_B.shape, self.name_of, task_reward=reward_B)
        if self.offsets is None:
            fits, expected = mask.ndim == 2 and mask.shape[0] == responses, f"[{responses}, T]"
        else:
            ends = self.offsets.tolist()
            fits = mask.ndim == 1 and len(ends) == responses + 1 and [0, *sorted(ends[1:-1]), len(mask)] == ends
            expected = f"[N], and {responses + 1} ascending offsets from 0 to N"
        if mask.dtype != torch.bool or not fits:
            raise ScoreError(f"mask has dtype {mask.dtype} and shape {list(mask.shape)}; expected bool {expected}")
        check_scores(mask, **{name: getattr(self, f"{name}_BT") for name in SCORE_FIELDS})

    @classmethod
    def of(
        cls,
        task_reward: Tensor | Sequence[float],
        group: Tensor | Sequence[Hashable],
        mask: Tensor,
        old_logp: Tensor,
        teacher_logp: Tensor | None = None,
        teacher_entropy: Tensor | None = None,
        initial_logp: Tensor | None = None,
        student_entropy: Tensor | None = None,
    ) -> ScoredBatch:
        """A batch of tensors of any leading shape, with a bool or integer mask and groups of any hashable identity.

        Rewards and groups are [...] or a flat sequence (of groups: strings, UUIDs), mask and scores [..., T]; the
        record's fields say what each is.

        Raises:
            ScoreError: as the record does.
        """
        scores = (old_logp, teacher_logp, teacher_entropy, initial_logp, student_entropy)
        if not isinstance(task_reward, Tensor):
            flat = torch.tensor(task_reward, dtype=torch.float64, device=mask.device)
            task_reward = flat.reshape(mask.shape[:-1]) if flat.numel() == mask.shape[:-1].numel() else flat
        given = {name: each for name, each in zip(SCORE_FIELDS, scores, strict=True) if each is not None}
        if task_reward.shape != mask.shape[:-1] or any(each.shape != mask.shape for each in given.values()):
            named = {"task_reward": task_reward, "mask": mask, **given}
            raise ScoreError(
                f"got shapes {', '.join(f'{name} {list(each.shape)}' for name, each in named.items())}; expected one "
                "[..., T] for mask and scores, [...] for task_reward; token_scores gives [K, ...], a row a temperature"
            )
        token_fields: dict[str, Any] = {f"{name}_BT": rows(each) for name, each in given.items()}
        numbers_B = numbered(group, mask.device)
        return cls(
            task_reward_B=task_reward.reshape(-1), group_B=numbers_B, mask_BT=rows(as_bool(mask)), **token_fields
        )

    def select(self, keep_B: Tensor) -> ScoredBatch:
        """A padded batch of some of the responses, ``keep_B`` [B] bool."""
        tensors = {each.name: value for each in fields(self) if isinstance(value := getattr(self, each.name), Tensor)}
        ids = None if self.sample_ids is None else tuple(itertools.compress(self.sample_ids, keep_B.tolist()))
        return replace(self, **{name: value[keep_B] for name, value in tensors.items()}, sample_ids=ids)

    @property
    def responses(self) -> int:
        """Number of responses B."""
        return self.task_reward_B.shape[0]

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks that cover every sampled token once, trimmed to the columns in use."""
        if self.offsets is not None:
            ends = itertools.pairwise(self.offsets.tolist())
            return tuple(Block(slice(row, row + 1), slice(*span), packed=True) for row, span in enumerate(ends))
        blocks = []
        budget = CPU_BLOCK_TOKENS if self.mask_BT.device.type == "cpu" else GPU_BLOCK_TOKENS
        height = max(1, budget // max(1, self.mask_BT.shape[1]))
        for start in range(0, self.responses, height):
            rows = slice(start, min(start + height, self.responses))
            used = self.mask_BT[rows].view(torch.uint8).amax(dim=0).nonzero()
            columns = slice(int(used[0]), int(used[-1]) + 1) if used.numel() else slice(0, 0)
            blocks.append(Block(rows, (rows, columns), packed=False))
        return tuple(blocks)

    @cached_property
    def token_counts_B(self) -> Tensor:
        """[B] float64 number of sampled tokens, at least 1 each; a response without any is a ScoreError."""
        counts_B = torch.empty(self.responses, dtype=torch.float64, device=self.mask_BT.device)
        for block in self.blocks:
            counts_B[block.rows] = block.of(self.mask_BT).sum(dim=1).to(torch.float64)
        return not_empty(counts_B, self.name_of)

    def scores(self, name: str) -> Tensor:
        """A score field, [B, T], by its name in `SCORE_FIELDS`."""
        found: Tensor | None = getattr(self, f"{name}_BT")
        if found is None:
            raise ScoreError(f"the batch has no {name}; expected it, since the method reads it")
        return found

    def name_of(self, row: int) -> str:
        """What error messages call response ``row``."""
        return f"response {row}" if self.sample_ids is None else f"response {row} ({self.sample_ids[row]})"

    def names(self, block: Block) -> Names:
        """What error messages call the block's responses and tokens."""
        first = block.index[1].start if isinstance(block.index, tuple) else 0
        return Names(lambda row: self.name_of(block.rows.start + row), first)


@dataclass(frozen=True)
class Settings:
    """Scalars of a method; None means "not given", and a method that needs it says so."""

    #: Weight of the teacher reward in R^U.
    alpha: float | None = None
    #: Redistribution strength, 0 <= rho < 1.
    rho: float | None = None
    #: Gap scale of the direction, nats, > 0.
    tau_delta: float | None = None
    #: Entropy scale of the confidence, nats, > 0.
    tau_entropy: float | None = None
    #: The group denominator becomes max(sigma, std_floor) + eps; 0 is the paper.
    std_floor: float | None = None
    #: Divide the variance by G - 1 instead of G.
    sample_std: bool | None = None
    #: Weight of the second surrogate of ``grpo_plus_opd``.
    opd_coef: float | None = None
    #: Completed training steps (the schedules of ``atod`` and ``saf_opd``).
    step: int | None = None
    #: Training steps of the whole run (``saf_opd``).
    total_steps: int | None = None
    #: Of the permutation (``shuffled_entropy``).
    seed: int | None = None
    #: Numbers of one method's own, by the names in its line of the registry.
    parameters: Mapping[str, float] = field(default_factory=dict)
    #: What the method carried over from the step before; empty at the first.
    state: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a value outside the paper's ranges: a ConfigError that names the setting."""
        for name, (legal, expected) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not legal(value):
                raise ConfigError(f"{name} is {value}; expected {expected}")

    def given(self, names: Iterable[str], method: str) -> dict[str, Any]:
        """Values of settings, or of the method's own parameters, by name; a ConfigError names all not given."""
        values = {name: getattr(self, name) if hasattr(self, name) else self.parameters.get(name) for name in names}
        missing = sorted(name for name, value in values.items() if value is None)
        if missing:
            raise ConfigError(f"method {method} needs {', '.join(missing)}, which it was not given")
        return values


@dataclass(frozen=True)
class Advantages:
    """What a method returns. All tensors are detached; None where the method has no such quantity.

    Token fields have the layout of the batch. Outside the mask, and outside the loss's own where there is one, the
    advantages are 0; ``weight_BT`` is 1 outside the mask, and the other token fields are 0.
    """

    #: Advantage of the (first) clipped surrogate.
    advantage_BT: Tensor
    #: Advantage of the second surrogate (``grpo_plus_opd``).
    advantage_opd_BT: Tensor | None = None
    #: bool, the sampled tokens in the loss; the others leave its numerator, the reference KL's included, and its
    #: denominator. None where all are in it.
    loss_mask_BT: Tensor | None = None
    #: Token weight w, residual q, direction d and confidence c: only with ``detail``.
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
    #: What the method carries over to the next step's ``Settings.state``.
    state: Mapping[str, float] | None = None

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor that is present, by its public name (the keys of ``nemo-uecr replay``)."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return {name.removesuffix("_BT").removesuffix("_B"): tensor for name, tensor in tensors.items()}

    def loss_tensors(self) -> dict[str, Tensor]:
        """What the loss reads, by public name: a back end uses all of it, and a saved batch keeps it."""
        return {name: tensor for name, tensor in self.named_tensors().items() if name in LOSS_TENSORS}

    def trained(self, mask_BT: Tensor) -> Tensor:
        """[B, T] bool, which of the sampled tokens ``mask_BT`` are in the loss."""
        return mask_BT if self.loss_mask_BT is None else self.loss_mask_BT
