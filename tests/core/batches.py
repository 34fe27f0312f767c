"""Batches for the tests of the mathematics: random ragged responses, and their settings."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import METHODS, Advantages, Method, RunState, method_of
from nemo_uecr.core.record import ScoredBatch
from tests.core.reference import Response, Settings

SETTINGS = Settings(
    alpha=1.3, rho=0.7, tau_delta=0.8, tau_entropy=0.9, mix=0.4, bound=0.3, extrapolation=1.6, keep=0.3, warmup=30.0,
    amplification=0.7, discount=0.8, share=0.3, step=20, seed=7, total_steps=90, horizon=2.0, margin=0.4, memory=0.7,
    state={"first_kl": 1.0, "warmup_end": 12.0, "lead": 1.5, "groups": 2.0},
)  # fmt: skip
#: UECR and its ablations; uecr_trust is a mixture with GRPO.
ECR_FAMILY = tuple(name for name, method in METHODS.items() if "rho" in method.ranges() and name != "uecr_trust")
OF_THE_RUN = ("step", "total_steps", "seed", "state")


def configured(name: str, k: Settings) -> Method:
    """The method with those of the settings that it has."""
    return method_of(name, {key: value for key, value in vars(k).items() if key not in OF_THE_RUN})


def computed(name: str, batch: ScoredBatch, k: Settings = SETTINGS) -> Advantages:
    """The method's advantages, in a run that is where the settings say."""
    return compute(configured(name, k), replace(batch, run=RunState(**{key: getattr(k, key) for key in OF_THE_RUN})))


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
        return tuple(float(torch.tensor(v)) if m else math.nan for v, m in zip(values, mask, strict=True))

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


def padded(
    responses: Sequence[Response],
    dtype: torch.dtype = torch.float64,
    *,
    extra_columns: int = 0,
    junk: float = math.nan,
) -> ScoredBatch:
    """[B, T] with ``junk`` in the padding."""
    columns = max(len(r.mask) for r in responses) + extra_columns

    def rows(field: str, fill: float, dtype: torch.dtype) -> Tensor:
        padding = [(fill,) * (columns - len(r.mask)) for r in responses]
        return torch.tensor([[*getattr(r, field), *p] for r, p in zip(responses, padding, strict=True)], dtype=dtype)

    return ScoredBatch(
        task_reward_B=torch.tensor([r.task for r in responses], dtype=dtype),
        group_B=torch.tensor([r.group for r in responses]),
        mask_BT=rows("mask", False, torch.bool),
        old_logp_BT=rows("old", junk, dtype),
        teacher_logp_BT=rows("teacher", junk, dtype),
        teacher_entropy_BT=rows("entropy", junk, dtype),
        initial_logp_BT=rows("initial", junk, dtype),
        student_entropy_BT=rows("student_entropy", junk, dtype),
        segments_BT=None if responses[0].segments is None else rows("segments", 99, torch.int64),
    )


def valid(batch: ScoredBatch, tokens: Tensor | None) -> Tensor:
    """The sampled tokens' values in response order."""
    return tokens[batch.mask_BT]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equality of the stored bits, so that -0.0 and 0.0 differ and NaN equals itself."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    )


@st.composite
def ragged(draw: st.DrawFn) -> list[Response]:
    """Random ragged responses: 1 to 4 groups of 2 to 5, lengths 1 to 11, with and without holes."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    rewards = draw(st.sampled_from(((0.0, 1.0), (1.0,), (0.0, 0.5, 1.0), (-1.0, 2.0))))
    seed, longest = draw(st.integers(0, 2**32)), draw(st.integers(1, 11))
    return random_responses(seed, sizes, longest, holes=draw(st.booleans()), rewards=rewards)


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    """Settings over their whole useful range, the ends included."""
    return Settings(
        alpha=draw(st.sampled_from((0.0, 0.1, 1.0, 3.0))),
        rho=draw(st.sampled_from((0.0, 0.3, 0.5, 0.999))),
        tau_delta=draw(st.sampled_from((0.05, 0.5, 1.0, 4.0))),
        tau_entropy=draw(st.sampled_from((1e-3, 0.5, 1.0, 4.0))),
        std_floor=draw(st.sampled_from((0.0, 0.05, 10.0))),
        sample_std=draw(st.booleans()),
        step=draw(st.sampled_from((0, 1, 40, 79, 80, 200))),
        seed=7,
        total_steps=draw(st.sampled_from((1, 100, 300))),
        state=draw(st.sampled_from(({}, {"first_kl": 0.4, "lead": -2.0}, {"first_kl": 0.4, "warmup_end": 30.0}))),
        keep=draw(st.sampled_from((0.001, 0.2, 1.0))),
        warmup=draw(st.sampled_from((1.0, 60.0, 100.0))),
        amplification=draw(st.sampled_from((0.0, 0.5, 3.0))),
        discount=draw(st.sampled_from((0.0, 0.9, 0.99, 1.0))),
        horizon=draw(st.sampled_from((0.1, 16.0, 1000.0))),
        margin=draw(st.sampled_from((0.0, 0.2, 5.0))),
        memory=draw(st.sampled_from((0.0, 0.8))),
        share=draw(st.sampled_from((0.001, 0.2, 1.0))),
        mix=draw(st.sampled_from((0.01, 0.5, 0.99))),
        bound=draw(st.sampled_from((0.0, 0.2, 0.99))),
        extrapolation=draw(st.sampled_from((0.0, 0.5, 1.0, 1.25, 3.0))),
    )
