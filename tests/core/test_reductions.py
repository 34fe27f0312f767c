"""Methods that must coincide, bit for bit where the definition says so; and the null tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch import Tensor

from nemo_uecr.core.ecr import with_shuffled_entropy
from nemo_uecr.core.invariants import reductions
from nemo_uecr.core.loss import policy_loss
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import ScoredBatch, Settings
from tests.core.batches import (
    ECR_FAMILY,
    SETTINGS,
    mixed_responses,
    padded,
    ragged,
    random_responses,
    same_bits,
    valid,
)
from tests.core.reference import Response


def advantage(name: str, batch: ScoredBatch, settings: Settings = SETTINGS) -> Tensor:
    return METHODS[name].compute(batch, settings).advantage_BT


def loss_and_gradient(batch: ScoredBatch, advantage_BT: Tensor) -> tuple[Tensor, Tensor]:
    """A clipped loss off policy, so that clipping takes part."""
    generator = torch.Generator().manual_seed(1)
    shape = batch.mask_BT.shape
    noise = 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    logp = (batch.old_logp_BT + noise.to(batch.old_logp_BT.dtype)).requires_grad_()
    out = policy_loss(
        logp,
        batch.old_logp_BT,
        advantage_BT,
        batch.mask_BT,
        ref_logp=batch.old_logp_BT,
        kl_coef=0.001,
    )
    out.total.backward()
    return out.total.detach(), logp.grad


def assert_bitwise(a: str, b: str, batch: ScoredBatch, settings: Settings) -> None:
    first, second = advantage(a, batch, settings), advantage(b, batch, settings)
    assert same_bits(valid(batch, first), valid(batch, second)), f"{a} and {b}: advantage"
    assert torch.equal(first, second)
    for x, y in zip(loss_and_gradient(batch, first), loss_and_gradient(batch, second), strict=True):
        assert same_bits(x, y), f"{a} and {b}: loss or gradient"


@given(responses=ragged())
def test_rho_zero_is_puu(responses: list[Response]) -> None:
    batch = padded(responses, torch.float32)
    for name in ECR_FAMILY:
        if name != "ecr_alpha_zero":
            assert_bitwise(name, "puu", batch, replace(SETTINGS, rho=0.0))


@given(responses=ragged())
def test_alpha_and_rho_zero_is_grpo(responses: list[Response]) -> None:
    batch = padded(responses, torch.float32)
    for sample_std in (False, True):
        settings = replace(SETTINGS, alpha=0.0, rho=0.0, sample_std=sample_std)
        for name in (*ECR_FAMILY, "puu", "separate_norm"):
            assert_bitwise(name, "grpo", batch, settings)


@given(responses=ragged())
def test_alpha_zero_is_its_own_method(responses: list[Response]) -> None:
    assert_bitwise("ecr_alpha_zero", "uecr", padded(responses), replace(SETTINGS, alpha=0.0))


def test_the_check_of_a_run_s_batches_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = padded(mixed_responses(0), torch.float32)
    assert reductions(batch) == {"rho = 0": 0.0, "alpha = rho = 0": 0.0}
    assert reductions(replace(batch, teacher_logp_BT=None, teacher_entropy_BT=None)) == {}
    monkeypatch.setitem(METHODS, "puu", METHODS["separate_norm"])
    assert reductions(batch)["rho = 0"] > 0


def agreeing(responses: list[Response]) -> list[Response]:
    return [replace(r, teacher=r.old) for r in responses]


#: Without a gap these have no teacher signal left (ecr_no_gap keeps the entropy, pg_opd has nothing else).
SILENT = ("puu", "uecr", "ecr_no_entropy", "ecr_no_projection", "ecr_full_advantage", "ecr_alpha_zero",
          "shuffled_entropy", "separate_norm", "distilled_rl", "grpo_plus_opd", "rlsd")  # fmt: skip


@pytest.mark.parametrize("name", SILENT)
def test_an_agreeing_teacher_is_grpo(name: str) -> None:
    assert_bitwise(name, "grpo", padded(agreeing(mixed_responses(0)), torch.float32), SETTINGS)
    assert_bitwise(name, "grpo", padded(agreeing(random_responses(0)), torch.float64), SETTINGS)


def test_an_agreeing_teacher_leaves_opd_nothing() -> None:
    batch = padded(agreeing(random_responses(0)))
    assert torch.equal(advantage("pg_opd", batch), torch.zeros_like(batch.old_logp_BT))
    second = METHODS["grpo_plus_opd"].compute(batch, SETTINGS).advantage_opd_BT
    assert torch.equal(second, torch.zeros_like(batch.old_logp_BT))
    # ATOD's schedule still scales the verifier's part: step 20 gives rho = 1.25.
    torch.testing.assert_close(advantage("atod", batch), 1.25 * advantage("grpo", batch), rtol=1e-15, atol=0)


@pytest.mark.parametrize("seed", range(2))
def test_two_scoring_passes_of_one_model(seed: int) -> None:
    """Scores that differ by 1e-6 a token leave mixed groups within 1e-4 of GRPO."""
    responses = mixed_responses(seed, (8, 4, 2), 30)
    generator = torch.Generator().manual_seed(seed)
    batch = padded(agreeing(responses), torch.float32)
    noise = (torch.rand(batch.mask_BT.shape, generator=generator) * 2 - 1) * 1e-6
    teacher = (batch.old_logp_BT.double() + noise).float()
    got = advantage("uecr", replace(batch, teacher_logp_BT=teacher))
    assert float((got - advantage("grpo", batch)).abs().max()) <= 1e-4


def test_the_shuffle_keeps_values_and_holes() -> None:
    batch = padded(random_responses(8, (6, 5), 25))
    moved = with_shuffled_entropy(batch, seed=5)
    again, other = with_shuffled_entropy(batch, seed=5), with_shuffled_entropy(batch, seed=6)
    for row in range(batch.responses):
        mask = batch.mask_BT[row]
        before, after = batch.teacher_entropy_BT[row], moved.teacher_entropy_BT[row]
        assert torch.equal(before[mask].sort().values, after[mask].sort().values)
        assert bool(after[~mask].isnan().all()), "masked-out places keep what they had"
    assert torch.equal(valid(batch, moved.teacher_entropy_BT), valid(batch, again.teacher_entropy_BT))
    assert not torch.equal(valid(batch, moved.teacher_entropy_BT), valid(batch, other.teacher_entropy_BT))
    assert not torch.equal(valid(batch, moved.teacher_entropy_BT), valid(batch, batch.teacher_entropy_BT))


@pytest.mark.parametrize(
    ("seed", "order"), [(0, [2, 0, 5, 1, 4, 3]), (1, [0, 1, 4, 5, 3, 2]), (2, None), (10**15, None)]
)
def test_the_permutation_is_that_of_every_version(seed: int, order: list[int] | None) -> None:
    # `replay --check` of another version needs the same one: that of torch's generator at (1000003 seed + n) mod 2^64.
    entropy = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    batch = padded([Response(task, 0, (True,) * 6, (-1.0,) * 6, (-1.0,) * 6, entropy) for task in (0.0, 1.0)])
    if order is None:
        start = (seed * 1_000_003 + 6) % 2**64
        order = torch.randperm(6, generator=torch.Generator().manual_seed(start)).tolist()
    moved = with_shuffled_entropy(batch, seed=seed).teacher_entropy_BT
    assert torch.equal(moved[0], batch.teacher_entropy_BT[0][order])


@given(responses=ragged())
def test_rlsd_without_mix_or_bound_is_grpo(responses: list[Response]) -> None:
    batch = padded(responses)
    for parameters in ({"mix": 0.0, "bound": 0.2}, {"mix": 1.0, "bound": 0.0}):
        settings = replace(SETTINGS, parameters=parameters)
        assert torch.equal(advantage("rlsd", batch, settings), advantage("grpo", batch))


@given(responses=ragged())
def test_g_opd_of_strength_one_is_pg_opd_bit_for_bit(responses: list[Response]) -> None:
    batch = padded(responses, torch.float32)
    plain = valid(batch, advantage("pg_opd", batch))
    one, two = (replace(SETTINGS, parameters={"extrapolation": strength}) for strength in (1.0, 2.0))
    assert same_bits(valid(batch, advantage("g_opd", batch, one)), plain)
    # A student that has not moved: the implicit reward is the gap itself, and the strength multiplies it.
    still = replace(batch, initial_logp_BT=batch.old_logp_BT)
    gap_N = valid(batch, batch.teacher_logp_BT) - valid(batch, batch.old_logp_BT)
    assert torch.equal(valid(batch, advantage("g_opd", still, two)), (2 * gap_N).clamp(-5, 5))
