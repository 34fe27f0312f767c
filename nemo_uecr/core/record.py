"""The record that every back end hands to the methods: checked once, masked once, with what methods share.

Legend: B responses, P prompts (groups), T tokens (padded). Log-probabilities and entropies are in nats, at temperature
1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.core import GAP_CLIP
from nemo_uecr.core.methods.base import RunState
from nemo_uecr.errors import ScoreError

#: Rounding may leave a log-probability this far above 0, and an entropy this far below.
LOGP_ROUNDING, ENTROPY_ROUNDING = 1e-3, 1e-4
#: A turn statistic whose spread over the response is below this counts as 1/2 for every turn.
FLAT_RANGE = 1e-8
#: Token fields with log-probabilities or entropies, in nats.
SCORE_FIELDS = ("old_logp", "teacher_logp", "teacher_entropy", "initial_logp", "student_entropy")


@dataclass(frozen=True)
class Groups:
    """Responses by prompt: ``index_B`` in [0, P) and the group sizes, for ragged groups in any order."""

    index_B: Tensor
    size_P: Tensor

    @classmethod
    def of(cls, group_B: Tensor) -> Groups:
        """Number the groups: of equal values, or of equal rows [B, K]."""
        _, index_B, size_P = torch.unique(group_B, dim=0, return_inverse=True, return_counts=True)
        return cls(index_B, size_P)

    def mean(self, value_B: Tensor) -> Tensor:
        """[B] float64 mean of each response's group."""
        total_P = torch.zeros(self.size_P.shape, dtype=torch.float64, device=value_B.device)
        return (total_P.index_add_(0, self.index_B, value_B.double()) / self.size_P)[self.index_B]

    def ends(self, value_B: Tensor) -> tuple[Tensor, Tensor]:
        """[B] float64 smallest and largest value of each response's group."""
        low_P, high_P = (
            torch.zeros(self.size_P.shape, dtype=torch.float64, device=value_B.device).scatter_reduce(
                0, self.index_B, value_B.double(), end, include_self=False
            )
            for end in ("amin", "amax")
        )
        return low_P[self.index_B], high_P[self.index_B]

    def spread(self, value_B: Tensor) -> Tensor:
        """[B] float64 ``max - min`` of each response's group."""
        low_B, high_B = self.ends(value_B)
        return high_B - low_B

    def flat(self, value_B: Tensor) -> Tensor:
        """[B] bool, True where max == min in the response's group (a degenerate group)."""
        return self.spread(value_B) == 0

    def centre(self, value_B: Tensor) -> Tensor:
        """[B] float64 value minus its group mean; exactly 0 in a group whose values are all equal."""
        return (value_B.double() - self.mean(value_B)).masked_fill(self.flat(value_B), 0.0)

    def std(self, centred_B: Tensor, *, sample: bool) -> Tensor:
        """[B] float64 ``sqrt(sum(x^2) / G)`` of each response's group, or ``/ (G - 1)``, from centred values."""
        size_B = self.size_P[self.index_B].double()
        scale_B = size_B / (size_B - 1) if sample else 1.0
        return (self.mean(centred_B.square()) * scale_B).sqrt()

    def check_pairs(self, name_of: Callable[[int], str] = "response {}".format) -> None:
        """Refuse a group of one, whose advantage does not exist."""
        if bool((self.size_P < 2).any()):
            row = int((self.size_P[self.index_B] < 2).nonzero()[0])
            raise ScoreError(
                f"{name_of(row)} is alone in its group; expected at least 2, since an advantage compares responses to "
                "one prompt. Sample more for each prompt, or leave this response out"
            )


@dataclass(frozen=True)
class ScoredBatch:
    """One step's responses with their rewards and token scores (docs/method.md, inputs of one step).

    Scores are float32 or float64, one type throughout. Where ``mask_BT`` is False they are never read, NaN included,
    and are 0 in the record.

    Raises:
        ScoreError: Shapes or types do not fit, a reward is not finite, or a score of a sampled token is not a number
            of nats that a model can give; names response and token.
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
    #: Names of the responses for messages.
    sample_ids: tuple[str, ...] | None = None
    #: Where the run is, for the methods that depend on it.
    run: RunState = field(default_factory=RunState)

    def __post_init__(self) -> None:
        reward_B, mask_BT = self.task_reward_B, self.mask_BT
        if reward_B.ndim != 1 or self.responses == 0 or self.group_B.shape != reward_B.shape:
            raise ScoreError(
                f"task_reward has shape {list(reward_B.shape)} and group {list(self.group_B.shape)}; expected [B], one "
                "value for each response"
            )
        check_per_response(reward_B.shape, self.name_of, task_reward=reward_B)
        if mask_BT.dtype != torch.bool or mask_BT.ndim != 2 or mask_BT.shape[0] != self.responses:
            raise ScoreError(
                f"mask has dtype {mask_BT.dtype} and shape {list(mask_BT.shape)}; expected bool [{self.responses}, T]"
            )
        scores = {name: getattr(self, f"{name}_BT") for name in SCORE_FIELDS}
        check_scores(mask_BT, **scores)
        for name, score_BT in scores.items():
            if score_BT is not None:
                object.__setattr__(self, f"{name}_BT", masked(name, score_BT, mask_BT, self.name_of))

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
        record's fields document each.

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
                "[..., T] for mask and scores, [...] for task_reward; token_scores gives [K, ...], one row per "
                "temperature"
            )
        token_fields: dict[str, Any] = {f"{name}_BT": rows(each) for name, each in given.items()}
        group_B = group_ids(group, mask.device)
        return cls(task_reward_B=task_reward.reshape(-1), group_B=group_B, mask_BT=rows(as_bool(mask)), **token_fields)

    def select(self, keep_B: Tensor) -> ScoredBatch:
        """Some of the responses, ``keep_B`` [B] bool."""
        kept: dict[str, Any] = {name: value[keep_B] for name, value in vars(self).items() if isinstance(value, Tensor)}
        ids = None if self.sample_ids is None else tuple(itertools.compress(self.sample_ids, keep_B.tolist()))
        own = {each.name for each in fields(self)}
        return replace(self, **{name: value for name, value in kept.items() if name in own}, sample_ids=ids)

    @property
    def responses(self) -> int:
        """Number of responses B."""
        return self.task_reward_B.shape[0]

    def name_of(self, row: int) -> str:
        """What error messages call response ``row``."""
        return f"response {row}" if self.sample_ids is None else f"response {row} ({self.sample_ids[row]})"

    @cached_property
    def groups(self) -> Groups:
        """The responses by prompt."""
        return Groups.of(self.group_B)

    @cached_property
    def token_count_B(self) -> Tensor:
        """[B] float64 number of sampled tokens."""
        return self.mask_BT.sum(1, dtype=torch.float64)

    @cached_property
    def gap_BT(self) -> Tensor:
        """Gap ``delta_t = log pi_T(y_t) - log pi_old(y_t)``, nats (eq:teacher-token-reward)."""
        return self.gap_to("old_logp")

    def gap_to(self, baseline: str) -> Tensor:
        """``log pi_T(y_t)`` minus the log-probability by another policy, a score; nats."""
        return self.score("teacher_logp") - self.score(baseline)

    def score(self, name: str) -> Tensor:
        """[B, T] a score by its name in `SCORE_FIELDS`."""
        found: Tensor | None = getattr(self, f"{name}_BT")
        if found is None:
            raise ScoreError(
                f"the batch has no {name}; expected it, since the method reads it (a class names that in `reads`)"
            )
        return found

    @cached_property
    def teacher_reward_B(self) -> Tensor:
        """``R^T = sum_t m clip(delta, -5, 5) / sum_t m``; [B] float64 nats (eq:unified-reward)."""
        return self.token_mean(self.gap_BT.clamp(-GAP_CLIP, GAP_CLIP))

    def token_sum(self, value_BT: Tensor) -> Tensor:
        """[B] float64 sum over a response's sampled tokens."""
        return value_BT.masked_fill(~self.mask_BT, 0).sum(1, dtype=torch.float64)

    def token_mean(self, value_BT: Tensor) -> Tensor:
        """[B] float64 mean over a response's sampled tokens."""
        return self.token_sum(value_BT) / self.token_count_B

    def group_token_mean(self, value_BT: Tensor) -> Tensor:
        """[B] float64 mean over all sampled tokens of a response's group."""
        return self.groups.mean(self.token_sum(value_BT)) / self.groups.mean(self.token_count_B)

    def column(self, value_B: Tensor) -> Tensor:
        """[B, 1] in the dtype of the scores, to be multiplied with token values."""
        return value_B.to(self.old_logp_BT.dtype).unsqueeze(1)

    def with_shuffled_entropy(self, seed: int) -> ScoredBatch:
        """The teacher's entropies permuted within each response.

        The permutation depends on the seed and the number of sampled tokens alone, so it does not change with padding,
        with the order of responses, or with how the batch is split.
        """
        shuffled_BT = self.score("teacher_entropy").clone()
        for mask_T, entropy_T in zip(self.mask_BT, shuffled_BT, strict=True):
            values = entropy_T[mask_T]
            generator = torch.Generator().manual_seed((seed * 1_000_003 + len(values)) % 2**64)
            entropy_T[mask_T] = values[torch.randperm(len(values), generator=generator).to(values.device)]
        return replace(self, teacher_entropy_BT=shuffled_BT)

    def scaled_over_turns(self, value_BT: Tensor) -> Tensor:
        """[B, T] float64 mean of each token's turn, scaled to [0, 1] over its response's turns; 1/2 where all agree."""
        assert self.segments_BT is not None
        row_N = self.mask_BT.nonzero()[:, 0]
        turns = Groups.of(torch.stack((row_N, self.segments_BT[self.mask_BT]), dim=1))
        mean_N = turns.mean(value_BT[self.mask_BT])
        low_N, high_N = Groups.of(row_N).ends(mean_N)
        flat_N = high_N - low_N < FLAT_RANGE
        scaled_N = ((mean_N - low_N) / (high_N - low_N).masked_fill(flat_N, 1.0)).masked_fill(flat_N, 0.5)
        return torch.zeros(value_BT.shape, dtype=torch.float64, device=value_BT.device).masked_scatter(
            self.mask_BT, scaled_N
        )


# -- checks ------------------------------------------------------------------------------------------------------------


def rows(tokens: Tensor) -> Tensor:
    """A tensor of any leading shape as [B, T]."""
    return tokens.reshape(math.prod(tokens.shape[:-1]), tokens.shape[-1])


def group_ids(group: Tensor | Sequence[Hashable], device: torch.device) -> Tensor:
    """[B] integer prompt identities: a tensor of them, of any shape, or the numbers of hashable ones."""
    if isinstance(group, Tensor):
        if group.is_floating_point():
            raise ScoreError(f"group has dtype {group.dtype}; expected integers: are rewards and groups swapped?")
        return group.reshape(-1)
    numbers: dict[Hashable, int] = {}
    keys = [each.item() if isinstance(each, Tensor) else each for each in group]
    if None in keys:
        raise ScoreError(f"response {keys.index(None)} has the group None; expected its prompt's own")
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


def check_per_response(
    shape: Sequence[int], name_of: Callable[[int], str] = "response {}".format, **values: Tensor
) -> None:
    """Refuse rewards or advantages of another shape than one per response, and those that are not finite."""
    for name, value in values.items():
        if value.shape != torch.Size(shape):
            raise ScoreError(f"{name} has shape {list(value.shape)}; expected {list(shape)}, one for each response")
        for row in (~value.reshape(-1).isfinite()).nonzero()[:1, 0].tolist():
            raise ScoreError(f"{name} of {name_of(row)} is {float(value.reshape(-1)[row])}; expected a finite number")


def check_not_empty(mask_BT: Tensor, name_of: Callable[[int], str] = "response {}".format) -> None:
    """Refuse a response without a sampled token."""
    for row in (~mask_BT.any(1)).nonzero()[:1, 0].tolist():
        raise ScoreError(
            f"{name_of(row)} has no sampled token; expected at least one (an immediate end token counts). Drop "
            "the prompt's whole group or sample it again"
        )


def masked(
    name: str, score_BT: Tensor, mask_BT: Tensor, name_of: Callable[[int], str] = "response {}".format
) -> Tensor:
    """The score, 0 where the mask is False; refuse one that no model can give, naming response and token."""
    clean_BT = score_BT.masked_fill(~mask_BT, 0.0)
    low, high = (-ENTROPY_ROUNDING, math.inf) if name.endswith("entropy") else (-math.inf, LOGP_ROUNDING)
    wrong_BT = ~clean_BT.isfinite() | (clean_BT < low) | (clean_BT > high)
    for row, column in wrong_BT.nonzero()[:1].tolist():
        raise ScoreError(
            f"{name} of {name_of(row)} at token {column} is {float(clean_BT[row, column])}; expected a finite number "
            "of nats, no log-probability above 0 and no entropy below it (some kernels return sum p log p, minus the "
            "entropy). Score the response again; scores are never filled in"
        )
    return clean_BT.clamp_min(0.0) if name.endswith("entropy") else clean_BT
