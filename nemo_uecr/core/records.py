"""The records that every back end hands to the mathematics and gets back.

Shape legend: B = responses in the batch, T = tokens (padded), N = tokens of all responses (packed), b x t = a block.
Token fields are ``[B, T]``; in a packed batch they are ``[N]`` and ``offsets`` delimits the responses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
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
#: Tokens in one block. On CPU the temporaries of a block stay in the second-level cache; a GPU wants few launches.
CPU_BLOCK_TOKENS = 65_536
GPU_BLOCK_TOKENS = 16_777_216
#: Token fields with log-probabilities or entropies, in nats.
SCORE_FIELDS = ("old_logp", "teacher_logp", "teacher_entropy", "initial_logp")
#: Marks the fields of `Advantages` that tell how an advantage came about; any other belongs to the loss.
DESCRIBES = {"describes": True}


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
    """How error messages call the rows of a [b, t] tensor, and the number of its first token."""

    row: Callable[[int], str] = "response {}".format
    first_token: int = 0


def rows(tokens: Tensor) -> Tensor:
    """A tensor of any leading shape as [b, t]."""
    return tokens.reshape(math.prod(tokens.shape[:-1]), tokens.shape[-1])


def numbered(group: Tensor | Sequence[Hashable], device: torch.device) -> Tensor:
    """[B] integer prompt identities: a tensor of them, of any shape, or the numbers of hashable ones."""
    if isinstance(group, Tensor):
        return group.reshape(-1)
    numbers: dict[Hashable, int] = {}
    keys = [each.item() if isinstance(each, Tensor) else each for each in group]
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys], dtype=torch.long, device=device)


def check_scores(mask: Tensor, **scores: Tensor | None) -> None:
    """Refuse scores of another shape than the mask, or of a type that loses the gap.

    Raises:
        ScoreError: naming the field.
    """
    given = {name: tensor for name, tensor in scores.items() if tensor is not None}
    dtype = next(iter(given.values())).dtype
    for name, tensor in given.items():
        if tensor.shape != mask.shape:
            raise ScoreError(f"{name} has shape {list(tensor.shape)}; expected {list(mask.shape)}, the shape of mask")
        if tensor.dtype not in (torch.float32, torch.float64) or tensor.dtype != dtype:
            raise ScoreError(
                f"{name} has dtype {tensor.dtype}; expected float32 (or float64 throughout), because bf16 scores lose "
                "the gap between teacher and student"
            )


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
    """Raise when a row sum is not finite, naming response, token and field.

    A float64 sum of float32 values is finite exactly when every value is, so the usual case needs no extra pass.
    """
    if bool(row_sums_b.isfinite().all()):
        return
    for name, values in fields.items():
        bad = (~values.isfinite() & mask).nonzero()
        if bad.numel():
            row, column = int(bad[0, 0]), int(bad[0, 1])
            raise ScoreError(
                f"{name} of {names.row(row)} at token {names.first_token + column} is {float(values[row, column])}; "
                "expected a finite number of nats. Score the response again; scores are never filled in"
            )
    row = int((~row_sums_b.isfinite()).nonzero()[0])
    raise ScoreError(f"scores of {names.row(row)} overflow when summed; expected finite nats")


@dataclass(frozen=True)
class ScoredBatch:
    """One step's responses with their rewards and token scores (docs/method.md, inputs of one step).

    Values of token fields where ``mask_BT`` is False are never read, NaN included.

    Attributes:
        task_reward_B: [B] verifier reward R^task.
        group_B: [B] integer prompt identity; groups may be ragged and in any order.
        mask_BT: [B, T] (packed: [N]) bool, the sampled response tokens; may have holes.
        old_logp_BT: [B, T] log pi_old(y_t) at temperature 1, nats, float32 or float64.
        teacher_logp_BT: [B, T] log pi_T(y_t) at temperature 1, nats.
        teacher_entropy_BT: [B, T] full-vocabulary teacher entropy +H at temperature 1, nats.
        initial_logp_BT: [B, T] log pi_0(y_t), the initial student at temperature 1, nats (``g_opd`` only).
        segments_BT: [B, T] integer turn label of each token (``atod`` only).
        offsets: [B + 1] token offsets of a packed batch; None when padded.
        sample_ids: names of the responses for error messages.
    """

    task_reward_B: Tensor
    group_B: Tensor
    mask_BT: Tensor
    old_logp_BT: Tensor
    teacher_logp_BT: Tensor | None = None
    teacher_entropy_BT: Tensor | None = None
    initial_logp_BT: Tensor | None = None
    segments_BT: Tensor | None = None
    offsets: Tensor | None = None
    sample_ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse shapes and types that no method could use.

        Raises:
            ScoreError: naming the field.
        """
        _check_responses(self)
        _check_tokens(self)

    @classmethod
    def of(
        cls,
        task_reward: Tensor,
        group: Tensor | Sequence[Hashable],
        mask: Tensor,
        old_logp: Tensor,
        teacher_logp: Tensor | None = None,
        teacher_entropy: Tensor | None = None,
        initial_logp: Tensor | None = None,
    ) -> ScoredBatch:
        """A batch of tensors of any leading shape, with a bool or integer mask and groups of any hashable identity.

        Args:
            task_reward: [...] verifier reward.
            group: [...] prompt identities, or a flat sequence of them (strings, UUIDs).
            mask: [..., T] sampled tokens.
            old_logp: [..., T] log pi_old at temperature 1, nats; so are the other scores.
            teacher_logp: [..., T] log pi_T.
            teacher_entropy: [..., T] full-vocabulary +H.
            initial_logp: [..., T] log pi_0.

        Raises:
            ScoreError: as the record does.
        """
        if task_reward.shape != mask.shape[:-1]:
            raise ScoreError(
                f"task_reward has shape {list(task_reward.shape)}; expected {list(mask.shape[:-1])}, one a response"
            )
        return cls(
            task_reward_B=task_reward.reshape(-1),
            group_B=numbered(group, mask.device),
            mask_BT=rows(mask.bool()),
            old_logp_BT=rows(old_logp),
            teacher_logp_BT=None if teacher_logp is None else rows(teacher_logp),
            teacher_entropy_BT=None if teacher_entropy is None else rows(teacher_entropy),
            initial_logp_BT=None if initial_logp is None else rows(initial_logp),
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
        """[B] float64 number of sampled tokens, at least 1 each.

        Raises:
            ScoreError: If a response has none.
        """
        counts_B = torch.empty(self.responses, dtype=torch.float64, device=self.mask_BT.device)
        for block in self.blocks:
            counts_B[block.rows] = block.of(self.mask_BT).sum(dim=1).to(torch.float64)
        return not_empty(counts_B, self.name_of)

    def scores(self, name: str) -> Tensor:
        """A score field, [B, T], by its name in `SCORE_FIELDS`.

        Raises:
            ScoreError: If the batch has none.
        """
        found: Tensor | None = getattr(self, f"{name}_BT")
        if found is None:
            raise ScoreError(f"the batch has no {name}; expected these scores, which the method reads")
        return found

    def name_of(self, row: int) -> str:
        """How an error message calls response ``row``."""
        return f"response {row}" if self.sample_ids is None else f"response {row} ({self.sample_ids[row]})"

    def names(self, block: Block) -> Names:
        """How error messages call the block's responses and tokens."""
        first = block.index[1].start if isinstance(block.index, tuple) else 0
        return Names(lambda row: self.name_of(block.rows.start + row), first)


@dataclass(frozen=True)
class Settings:
    """Scalars of a method; None means "not given", and a method that needs it says so.

    Attributes:
        alpha: weight of the teacher reward in R^U.
        rho: redistribution strength, 0 <= rho < 1.
        tau_delta: gap scale of the direction, nats, > 0.
        tau_entropy: entropy scale of the confidence, nats, > 0.
        std_floor: denominator becomes max(sigma, std_floor) + eps; 0 is the paper.
        sample_std: divide the variance by G - 1 instead of G.
        opd_coef: weight of the second surrogate of ``grpo_plus_opd``.
        step: completed training steps (``atod``'s schedule).
        seed: permutation seed (``shuffled_entropy``).
        parameters: numbers of one method's own, by the names in its line of the registry.
    """

    alpha: float | None = None
    rho: float | None = None
    tau_delta: float | None = None
    tau_entropy: float | None = None
    std_floor: float | None = None
    sample_std: bool | None = None
    opd_coef: float | None = None
    step: int | None = None
    seed: int | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values outside the paper's ranges.

        Raises:
            ConfigError: naming the setting.
        """
        for name in ("alpha", "rho", "tau_delta", "tau_entropy", "std_floor", "opd_coef"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"{name} is {value}; expected a finite number")
        if self.rho is not None and not 0.0 <= self.rho < 1.0:
            raise ConfigError(f"rho is {self.rho}; expected 0 <= rho < 1, so that every token weight stays positive")
        for name in ("tau_delta", "tau_entropy"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} is {value}; expected a positive number of nats")
        for name in ("std_floor", "step", "seed"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} is {value}; expected 0 or more")

    def given(self, names: Iterable[str], method: str) -> dict[str, Any]:
        """Values of settings, or of the method's own parameters, by name.

        Raises:
            ConfigError: naming every one that was not given.
        """
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

    Attributes:
        advantage_BT: advantage of the (first) clipped surrogate.
        advantage_opd_BT: advantage of the second surrogate (``grpo_plus_opd``).
        loss_mask_BT: bool, the sampled tokens in the loss; the others leave its numerator, the reference KL's
            included, and its denominator. None where all are in it.
        weight_BT: token weight w (only with ``detail``).
        residual_BT: q (only with ``detail``).
        direction_BT: d (only with ``detail``).
        confidence_BT: c (only with ``detail``).
        centre_B: [B] the response mean mu^c that the projection subtracts.
        advantage_unified_B: [B] A^U.
        advantage_task_B: [B] A^task|U (methods without PUU: their task advantage).
        advantage_teacher_B: [B] A^T|U.
        teacher_reward_B: [B] R^T, nats.
        unified_std_B: [B] group standard deviation of the normalised reward, before floor and eps.
    """

    advantage_BT: Tensor
    advantage_opd_BT: Tensor | None = None
    loss_mask_BT: Tensor | None = None
    weight_BT: Tensor | None = field(default=None, metadata=DESCRIBES)
    residual_BT: Tensor | None = field(default=None, metadata=DESCRIBES)
    direction_BT: Tensor | None = field(default=None, metadata=DESCRIBES)
    confidence_BT: Tensor | None = field(default=None, metadata=DESCRIBES)
    centre_B: Tensor | None = field(default=None, metadata=DESCRIBES)
    advantage_unified_B: Tensor | None = field(default=None, metadata=DESCRIBES)
    advantage_task_B: Tensor | None = field(default=None, metadata=DESCRIBES)
    advantage_teacher_B: Tensor | None = field(default=None, metadata=DESCRIBES)
    teacher_reward_B: Tensor | None = field(default=None, metadata=DESCRIBES)
    unified_std_B: Tensor | None = field(default=None, metadata=DESCRIBES)

    def trained(self, mask_BT: Tensor) -> Tensor:
        """[B, T] bool, which of the sampled tokens ``mask_BT`` are in the loss."""
        return mask_BT if self.loss_mask_BT is None else self.loss_mask_BT

    def loss_tensors(self) -> dict[str, Tensor]:
        """What the loss reads, by public name: a back end uses all of it, and a saved batch keeps it."""
        return {name: tensor for name, tensor in self.named_tensors().items() if name in LOSS_TENSORS}

    def check_used(self, used: Set[str], back_end: str) -> None:
        """Refuse what the loss has to read and a back end would ignore.

        Raises:
            ScoreError: naming it.
        """
        if ignored := sorted(self.loss_tensors().keys() - used):
            raise ScoreError(
                f"the method returned {', '.join(ignored)}, which the back end {back_end} does not use; expected only "
                f"{', '.join(sorted(used))}: it would train on another loss"
            )

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor that is present, by its public name (the keys of ``nemo-uecr replay``)."""
        return {_public(name): tensor for name, tensor in vars(self).items() if tensor is not None}


def _public(name: str) -> str:
    return name.removesuffix("_BT").removesuffix("_B")


#: Public names of the tensors that the loss reads.
LOSS_TENSORS = frozenset(_public(each.name) for each in fields(Advantages) if not each.metadata)


def _check_responses(batch: ScoredBatch) -> None:
    reward_B, responses = batch.task_reward_B, batch.responses
    if reward_B.ndim != 1 or responses == 0 or batch.group_B.shape != reward_B.shape:
        raise ScoreError(
            f"task_reward has shape {list(reward_B.shape)} and group {list(batch.group_B.shape)}; expected [B], one "
            "value for each of at least two responses"
        )
    if batch.group_B.is_floating_point():
        raise ScoreError(f"group has dtype {batch.group_B.dtype}; expected integers (the prompt index)")
    unusable = (~reward_B.isfinite()).nonzero()
    if unusable.numel():
        row = int(unusable[0])
        raise ScoreError(
            f"task_reward of {batch.name_of(row)} is {float(reward_B[row])}; expected a finite number. "
            "One bad reward would spoil its whole group"
        )
    if batch.sample_ids is not None and len(batch.sample_ids) != responses:
        raise ScoreError(f"{len(batch.sample_ids)} sample ids for {responses} responses; expected one each")


def _check_tokens(batch: ScoredBatch) -> None:
    mask = batch.mask_BT
    if mask.dtype != torch.bool:
        raise ScoreError(f"mask has dtype {mask.dtype}; expected bool")
    if batch.offsets is None and (mask.ndim != 2 or mask.shape[0] != batch.responses):
        raise ScoreError(f"mask has shape {list(mask.shape)}; expected [{batch.responses}, T]")
    if batch.offsets is not None:
        ends = batch.offsets.tolist()
        if mask.ndim != 1 or len(ends) != batch.responses + 1 or [0, *sorted(ends[1:-1]), len(mask)] != ends:
            raise ScoreError(
                f"offsets run {ends[:1]} to {ends[-1:]} in {len(ends)} values; expected {batch.responses + 1} "
                f"ascending values from 0 to the {mask.shape[0]} tokens of a packed mask [N]"
            )
    if batch.segments_BT is not None and batch.segments_BT.shape != mask.shape:
        raise ScoreError(f"segments has shape {list(batch.segments_BT.shape)}; expected {list(mask.shape)}")
    check_scores(mask, **{name: getattr(batch, f"{name}_BT") for name in SCORE_FIELDS})
