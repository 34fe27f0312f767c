"""Methods that must coincide, bit for bit where the definition says so; and the null tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nemo_uecr.core.invariants import reductions
from nemo_uecr.core.loss import policy_loss
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.record import ScoredBatch
from tests.core.batches import (
    ECR_FAMILY,
    SETTINGS,
    computed,
    mixed_responses,
    padded,
    ragged,
    random_responses,
    same_bits,
    valid,
)
from tests.core.reference import Response, Settings


def advantage(name: str, batch: ScoredBatch, settings: Settings = SETTINGS) -> Tensor:
    return computed(name, batch, settings).advantage_BT


def assert_bitwise(a: str, b: str, batch: ScoredBatch, settings: Settings = SETTINGS) -> None:
    first, second = advantage(a, batch, settings), advantage(b, batch, settings)
    assert same_bits(valid(batch, first), valid(batch, second)), f"{a} and {b}"
    assert torch.equal(first, second)


@given(responses=ragged())
def test_without_its_novel_parts_uecr_is_its_baselines(responses: list[Response]) -> None:
    """rho = 0 is PUU, alpha = rho = 0 is GRPO, alpha = 0 is a method of its own."""
    batch = padded(responses, torch.float32)
    for name in set(ECR_FAMILY) - {"ecr_alpha_zero"}:
        assert_bitwise(name, "puu", batch, replace(SETTINGS, rho=0.0))
    for sample_std in (False, True):
        settings = replace(SETTINGS, alpha=0.0, rho=0.0, sample_std=sample_std)
        for name in (*ECR_FAMILY, "puu", "separate_norm"):
            assert_bitwise(name, "grpo", batch, settings)
    assert_bitwise("ecr_alpha_zero", "uecr", batch, replace(SETTINGS, alpha=0.0))


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


def test_an_agreeing_teacher_is_grpo_and_leaves_opd_nothing() -> None:
    for batch in (padded(agreeing(mixed_responses(0)), torch.float32), padded(agreeing(random_responses(0)))):
        for name in SILENT:
            assert_bitwise(name, "grpo", batch)
        assert not advantage("pg_opd", batch).any()
        assert not computed("grpo_plus_opd", batch).advantage_opd_BT.any()
        # ATOD's schedule still scales the verifier's part: step 20 gives rho = 1.25.
        torch.testing.assert_close(advantage("atod", batch), 1.25 * advantage("grpo", batch), rtol=1e-6, atol=0)


def test_two_scoring_passes_of_one_model() -> None:
    """Scores that differ by 1e-6 a token leave mixed groups within 1e-4 of GRPO."""
    batch = padded(agreeing(mixed_responses(0, (8, 4, 2), 30)), torch.float32)
    noise = (torch.rand(batch.mask_BT.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1) * 1e-6
    teacher = (batch.old_logp_BT.double() + noise).float()
    got = advantage("uecr", replace(batch, teacher_logp_BT=teacher))
    assert float((got - advantage("grpo", batch)).abs().max()) <= 1e-4


def test_the_shuffle_keeps_values_and_holes_and_is_that_of_every_version() -> None:
    """`replay --check` needs the permutation of torch's generator at (1000003 seed + n) mod 2^64."""
    batch = padded(random_responses(8, (6, 5), 25))
    for seed in (5, 10**15):
        moved = batch.with_shuffled_entropy(seed).teacher_entropy_BT
        for mask, before, after in zip(batch.mask_BT, batch.teacher_entropy_BT, moved, strict=True):
            start = (seed * 1_000_003 + int(mask.sum())) % 2**64
            order = torch.randperm(int(mask.sum()), generator=torch.Generator().manual_seed(start))
            assert torch.equal(after[mask], before[mask][order])
            assert not after[~mask].any()
    six = padded([Response(task, 0, (True,) * 6, *[(-1.0,) * 6] * 2, tuple(range(6))) for task in (0.0, 1.0)])
    for seed, order in ((0, [2, 0, 5, 1, 4, 3]), (1, [0, 1, 4, 5, 3, 2])):
        assert six.with_shuffled_entropy(seed).teacher_entropy_BT[0].tolist() == order


@pytest.mark.parametrize("state", [{}, {"lead": -9.0, "groups": 9.0}])
@pytest.mark.parametrize("sample_std", [False, True])
def test_without_evidence_trust_is_grpo(state: dict[str, float], sample_std: bool) -> None:
    """All groups right, or a past that speaks against the teacher: the same loss and gradient, bit for bit."""
    of = random_responses if state else lambda seed: [replace(r, task=1.0) for r in random_responses(seed)]
    batch, settings = padded(of(4), torch.float32), replace(SETTINGS, state=state, sample_std=sample_std)
    trusted, plain, found = computed("uecr_trust", batch, settings), computed("grpo", batch, settings), []
    assert trusted.state["kappa"] == 0
    assert same_bits(trusted.advantage_BT, plain.advantage_BT)
    assert not trusted.advantage_opd_BT.any()
    for advantages in (plain, trusted):
        logp_BT = (0.9 * batch.old_logp_BT).requires_grad_()
        second = None if advantages.advantage_opd_BT is None else (advantages.advantage_opd_BT, 1.0)
        loss = policy_loss(logp_BT, batch.old_logp_BT, advantages.advantage_BT, batch.mask_BT, second=second)
        loss.total.backward()
        found.append((loss.total.detach() + 0.0, logp_BT.grad + 0.0))  # a token without gradient may have -0
    assert all(same_bits(*pair) for pair in zip(*found, strict=True))


@given(responses=ragged(), std_floor=st.sampled_from((0.0, 0.3)))
def test_in_full_trust_the_first_surrogate_is_uecr_s_and_the_second_opd_s(
    responses: list[Response], std_floor: float
) -> None:
    """kappa < 1 for any evidence, since its prior is one group; a past that outweighs it rounds to 1."""
    batch = padded(responses, torch.float32)
    settings = replace(SETTINGS, state={"lead": 1e30, "groups": 1e30}, std_floor=std_floor)
    trusted, uecr = computed("uecr_trust", batch, settings), computed("uecr", batch, settings)
    assert trusted.state["kappa"] == 1
    for name, mine in trusted.named_tensors().items():
        if name != "advantage_opd":
            assert same_bits(mine, uecr.named_tensors()[name]), name
    assert same_bits(trusted.advantage_opd_BT, computed("grpo_plus_opd", batch, settings).advantage_opd_BT)


@given(responses=ragged())
def test_published_methods_at_the_ends_of_their_parameters(responses: list[Response]) -> None:
    """RLSD without mix or bound is GRPO; G-OPD of strength 1 is OPD, and doubles the gap of an unmoved student."""
    batch = padded(responses, torch.float32)
    for parameters in ({"mix": 0.0, "bound": 0.2}, {"mix": 1.0, "bound": 0.0}):
        settings = replace(SETTINGS, **parameters)
        assert torch.equal(advantage("rlsd", batch, settings), advantage("grpo", batch))
    one, two = (replace(SETTINGS, extrapolation=strength) for strength in (1.0, 2.0))
    assert same_bits(valid(batch, advantage("g_opd", batch, one)), valid(batch, advantage("pg_opd", batch)))
    still = replace(batch, initial_logp_BT=batch.old_logp_BT)
    gap_N = valid(batch, batch.teacher_logp_BT) - valid(batch, batch.old_logp_BT)
    assert torch.equal(valid(batch, advantage("g_opd", still, two)), (2 * gap_N).clamp(-5, 5))


@given(responses=ragged(), discount=st.sampled_from((0.0, 0.99, 1.0)))
def test_gamma_opd_keeps_the_verdict_s_sign_and_without_discount_reads_the_token_alone(
    responses: list[Response], discount: float
) -> None:
    right = [replace(r, task=float(r.task > 0)) for r in responses]
    batch = padded(right, torch.float32)
    found = advantage("gamma_opd", batch, replace(SETTINGS, discount=discount))
    verdict_BT = (2 * batch.task_reward_B - 1).unsqueeze(1).expand_as(found)
    assert torch.equal(valid(batch, found.sign()), valid(batch, verdict_BT))
    # A gap of one token alone: with no discount the others have the verdict and nothing else.
    alone = batch.old_logp_BT.clone()
    last = batch.mask_BT.int().cumsum(1).argmax(1)
    rows = torch.arange(batch.responses)
    alone[rows, last] -= 1.0
    only = advantage("gamma_opd", replace(batch, teacher_logp_BT=alone), replace(SETTINGS, discount=discount))
    others = batch.mask_BT.clone()
    others[rows, last] = False
    assert bool(
        (only[others] == verdict_BT[others]).all() if discount == 0 else (only[others] < verdict_BT[others]).all()
    )
