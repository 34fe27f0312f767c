"""Batches for the tests of the mathematics: random ragged responses, padded and packed, and their settings."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.method_registry import REGISTRY
from tests.core.reference import Response, Scalars

SCALARS = Scalars(
    alpha=1.3, rho=0.7, tau_delta=0.8, tau_entropy=0.9, std_floor=0.0, sample_std=False, opd_coef=1.0, step=20,
    mix=0.4, bound=0.3, extrapolation=1.6,
)  # fmt: skip
#: Redistribution by zero-sum weights: unit mean weight, |q| <= 1 and the task sign are promised by exactly these.
CONSERVING = tuple(name for name, entry in REGISTRY.items() if "residual_bound" in entry.identities)
ECR_FAMILY = tuple(name for name, entry in REGISTRY.items() if "rho" in entry.settings)


def settings_of(scalars: Scalars, seed: int = 7) -> Settings:
    return Settings(
        alpha=scalars.alpha,
        rho=scalars.rho,
        tau_delta=scalars.tau_delta,
        tau_entropy=scalars.tau_entropy,
        std_floor=scalars.std_floor,
        sample_std=scalars.sample_std,
        opd_coef=scalars.opd_coef,
        step=scalars.step,
        seed=seed,
        parameters={"mix": scalars.mix, "bound": scalars.bound, "extrapolation": scalars.extrapolation},
    )


SETTINGS = settings_of(SCALARS)


def as_float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def random_response(
    rng: random.Random, group: int, length: int, *, holes: bool, rewards: Sequence[float] = (0.0, 1.0)
) -> Response:
    """One response whose scores float32 holds exactly; masked-out values are NaN."""
    mask = [not holes or rng.random() < 0.75 for _ in range(length)]
    if not any(mask):
        mask[rng.randrange(length)] = True
    old = [-rng.expovariate(1.0) for _ in range(length)]
    shift = rng.gauss(0.0, 0.3)
    teacher = [min(0.0, o + shift + rng.choice((0.3, 1.0, 6.0)) * rng.gauss(0.0, 1.0)) for o in old]
    entropy = [rng.choice((rng.uniform(0.0, 2.0), rng.uniform(0.0, 12.0), 0.0)) for _ in range(length)]

    def kept(values: list[float]) -> tuple[float, ...]:
        return tuple(as_float32(v) if m else math.nan for v, m in zip(values, mask, strict=True))

    return Response(rng.choice(rewards), group, tuple(mask), kept(old), kept(teacher), kept(entropy))


def random_responses(
    seed: int,
    sizes: Sequence[int] = (2, 5, 3, 4),
    max_length: int = 11,
    *,
    holes: bool = True,
    rewards: Sequence[float] = (0.0, 1.0),
    shuffle: bool = True,
) -> list[Response]:
    """Ragged groups with arbitrary labels, interleaved."""
    rng = random.Random(seed)
    labels = rng.sample(range(-50, 10_000), len(sizes))
    out = [
        random_response(rng, label, rng.randint(1, max_length), holes=holes, rewards=rewards)
        for label, size in zip(labels, sizes, strict=True)
        for _ in range(size)
    ]
    if shuffle:
        rng.shuffle(out)
    return out


def mixed_responses(seed: int, sizes: Sequence[int] = (4, 3, 5), max_length: int = 9) -> list[Response]:
    """Every group holds both rewards, so every task advantage is nonzero."""
    out: list[Response] = []
    seen: dict[int, int] = {}
    for response in random_responses(seed, sizes, max_length):
        seen[response.group] = seen.get(response.group, 0) + 1
        out.append(replace(response, task=float(seen[response.group] % 2)))
    return out


def with_turns(responses: Sequence[Response], seed: int) -> list[Response]:
    rng = random.Random(seed)
    return [replace(r, segments=tuple(rng.randrange(3) * 4 - 4 for _ in r.mask)) for r in responses]


def _padded_rows(rows: Sequence[Sequence[float]], columns: int, junk: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor([[*row, *(junk,) * (columns - len(row))] for row in rows], dtype=dtype)


def padded(
    responses: Sequence[Response],
    dtype: torch.dtype = torch.float64,
    *,
    extra_columns: int = 0,
    junk: float = math.nan,
) -> ScoredBatch:
    """[B, T] with ``junk`` in the padding."""
    columns = max(len(r.mask) for r in responses) + extra_columns
    segments = None
    if responses[0].segments is not None:
        segments = _padded_rows([r.segments or () for r in responses], columns, 99, torch.int64)
    return ScoredBatch(
        task_reward_B=torch.tensor([r.task for r in responses], dtype=dtype),
        group_B=torch.tensor([r.group for r in responses]),
        mask_BT=_padded_rows([r.mask for r in responses], columns, False, torch.bool),
        old_logp_BT=_padded_rows([r.old for r in responses], columns, junk, dtype),
        teacher_logp_BT=_padded_rows([r.teacher for r in responses], columns, junk, dtype),
        teacher_entropy_BT=_padded_rows([r.entropy for r in responses], columns, junk, dtype),
        initial_logp_BT=_padded_rows([r.initial for r in responses], columns, junk, dtype),
        segments_BT=segments,
    )


def packed(responses: Sequence[Response], dtype: torch.dtype = torch.float64) -> ScoredBatch:
    """[N] with offsets; holes stay inside the responses."""
    ends = [0]
    for response in responses:
        ends.append(ends[-1] + len(response.mask))
    segments = None
    if responses[0].segments is not None:
        segments = torch.tensor([s for r in responses for s in (r.segments or ())])
    return ScoredBatch(
        task_reward_B=torch.tensor([r.task for r in responses], dtype=dtype),
        group_B=torch.tensor([r.group for r in responses]),
        mask_BT=torch.tensor([m for r in responses for m in r.mask]),
        old_logp_BT=torch.tensor([v for r in responses for v in r.old], dtype=dtype),
        teacher_logp_BT=torch.tensor([v for r in responses for v in r.teacher], dtype=dtype),
        teacher_entropy_BT=torch.tensor([v for r in responses for v in r.entropy], dtype=dtype),
        initial_logp_BT=torch.tensor([v for r in responses for v in r.initial], dtype=dtype),
        segments_BT=segments,
        offsets=torch.tensor(ends),
    )


def valid(batch: ScoredBatch, tokens: Tensor | None) -> Tensor:
    """The sampled tokens' values in response order, the same for padded and packed batches."""
    return tokens[batch.mask_BT]


def reference_valid(responses: Sequence[Response], rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([row[t] for r, row in zip(responses, rows, strict=True) for t in r.valid], dtype=torch.float64)


def close(got: Tensor, expected: Tensor, tolerance: float) -> bool:
    """|got - expected| <= tolerance * (1 + |expected|) everywhere; a NaN is never close."""
    difference = (got.to(torch.float64) - expected).abs()
    return got.shape == expected.shape and bool((difference <= tolerance * (1.0 + expected.abs())).all())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equality of the stored bits, so that -0.0 and 0.0 differ and NaN equals itself."""
    integer = torch.int32 if a.dtype == torch.float32 else torch.int64
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().view(integer), b.contiguous().view(integer))
    )


def token_fields(result: Advantages) -> dict[str, Tensor]:
    return {k: v for k, v in vars(result).items() if v is not None and k.endswith("_BT")}


def response_fields(result: Advantages) -> dict[str, Tensor]:
    return {k: v for k, v in vars(result).items() if v is not None and k.endswith("_B")}


@st.composite
def ragged(draw: st.DrawFn) -> list[Response]:
    """Random ragged responses: 1 to 4 groups of 2 to 5, lengths 1 to 11, with and without holes."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    rewards = draw(st.sampled_from(((0.0, 1.0), (1.0,), (0.0, 0.5, 1.0), (-1.0, 2.0))))
    return random_responses(
        draw(st.integers(0, 2**32)),
        sizes,
        draw(st.integers(1, 11)),
        holes=draw(st.booleans()),
        rewards=rewards,
    )


@st.composite
def scalars(draw: st.DrawFn) -> Scalars:
    """Settings over their whole useful range, the ends included."""
    return Scalars(
        alpha=draw(st.sampled_from((0.0, 0.1, 1.0, 3.0))),
        rho=draw(st.sampled_from((0.0, 0.3, 0.5, 0.999))),
        tau_delta=draw(st.sampled_from((0.05, 0.5, 1.0, 4.0))),
        tau_entropy=draw(st.sampled_from((1e-3, 0.5, 1.0, 4.0))),
        std_floor=draw(st.sampled_from((0.0, 0.05, 10.0))),
        sample_std=draw(st.booleans()),
        opd_coef=1.0,
        step=draw(st.sampled_from((0, 1, 40, 79, 80, 200))),
        mix=draw(st.sampled_from((0.0, 0.5, 1.0))),
        bound=draw(st.sampled_from((0.0, 0.2, 0.99))),
        extrapolation=draw(st.sampled_from((0.0, 0.5, 1.0, 1.25, 3.0))),
    )
