"""Valid extremes give finite numbers; invalid input gives one named error; degenerate groups."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import METHODS, Advantages
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import ScoreError
from tests.core.batches import ECR_FAMILY, SETTINGS, computed, mixed_responses, padded, random_responses, valid
from tests.core.reference import Response

ALL = sorted(METHODS)


def extremes() -> dict[str, list[Response]]:
    """Responses at the edges of what is valid: one token, long, holes, entropies 0 to 12, gaps of 1e4."""
    base = mixed_responses(1, (4, 4))
    return {
        "entropy 12": [replace(r, entropy=tuple(12.0 + 0.01 * t for t in range(len(r.mask)))) for r in base],
        "entropy 0 or 12": [replace(r, entropy=tuple(12.0 * (t % 2) for t in range(len(r.mask)))) for r in base],
        "gap 0 or -1e4": [replace(r, teacher=tuple(o - 1e4 * (t % 2) for t, o in enumerate(r.old))) for r in base],
        "gap all -1e4": [replace(r, teacher=tuple(o - 1e4 for o in r.old)) for r in base],
        "one token": random_responses(2, (4, 3), 1),
        "all right, agreeing": [replace(r, task=1.0, teacher=r.old) for r in base],
    }


@pytest.mark.parametrize("case", extremes())
def test_no_valid_input_gives_nan(case: str) -> None:
    batch = padded(extremes()[case], torch.float32)
    for change in ({}, {"tau_entropy": 1e-3, "tau_delta": 1e-3}, {"tau_entropy": 1e3, "tau_delta": 1e3, "rho": 0.999}):
        for name in ALL:
            got = computed(name, batch, replace(SETTINGS, **change))
            for key, tensor in got.named_tensors().items():
                assert bool(tensor.isfinite().all()), f"{name}: {key}"


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (math.nan, "teacher_logp"), (math.inf, "old_logp"), (math.inf, "teacher_entropy"), (-0.5, "teacher_entropy"),
        (-math.inf, "initial_logp"), (math.nan, "student_entropy"), (0.1, "teacher_logp"),
    ],
)  # fmt: skip
def test_a_score_that_no_model_gives_is_named_when_the_record_is_made(value: float, field: str) -> None:
    responses = random_responses(3, (3, 3), 9)
    row, column = 4, responses[4].valid[-1]
    batch = replace(padded(responses), sample_ids=tuple(f"id-{i}" for i in range(6)))
    score_BT = getattr(batch, f"{field}_BT").clone()
    score_BT[row, column] = value
    with pytest.raises(ScoreError, match=rf"{field} of response {row} \(id-{row}\) at token {column} is {value}"):
        replace(batch, **{f"{field}_BT": score_BT})


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("task_reward", {"task_reward_B": torch.zeros(14, 1)}),
        ("task_reward of response 3 is nan", {"task_reward_B": torch.tensor([0.0] * 3 + [math.nan] * 11)}),
        ("mask", {"mask_BT": torch.ones(13, 11, dtype=torch.bool)}),
        ("old_logp", {"old_logp_BT": torch.zeros(14, 3)}),
    ],
)
def test_fields_that_cannot_be_used_are_named(words: str, change: dict[str, Any]) -> None:
    batch = padded(random_responses(0), torch.float32)
    with pytest.raises(ScoreError, match=words):
        replace(batch, **change)


def test_a_degenerate_group_keeps_only_the_teacher() -> None:
    """Equal rewards: A^task|U = 0, s = 0, q = 0 exactly, and A is the standardised teacher score."""
    batch = padded([replace(r, task=1.0 / 3.0) for r in random_responses(8, (3, 7))], torch.float32)
    for name in ECR_FAMILY:
        got = computed(name, batch)
        assert not bool(got.advantage_task_B.any()), name
        assert name == "ecr_no_projection" or not bool(got.residual_BT.any()), name
        expected = got.advantage_unified_B.unsqueeze(1).expand_as(batch.mask_BT)[batch.mask_BT]
        assert torch.equal(valid(batch, got.advantage_BT), expected), name
        if name != "ecr_alpha_zero":
            rms = got.advantage_unified_B.double().square().mean().sqrt()
            assert rms.item() == pytest.approx(1.0, abs=1e-3), name
    assert not bool(computed("grpo", batch).advantage_BT.any())
    assert not bool(computed("ecr_alpha_zero", batch).advantage_BT.any())


def test_no_spread_at_all_is_zero_everywhere() -> None:
    same = {"task": 0.1, "mask": (True,), "old": (-8.0,), "teacher": (-7.9,), "entropy": (1.0,)}
    batch = padded([replace(r, **same) for r in random_responses(9, (3, 7), 1)])
    with_it = {"top_d", "pg_opd", "atod", "g_opd", "gamma_opd", "saf_opd", "iw_opd", "opsa", "opsa_control"}
    for name in set(ALL) - with_it:
        assert not computed(name, batch).advantage_BT.any(), name


def test_decomposition_survives_a_nearly_degenerate_group() -> None:
    """Equal rewards, teacher rewards some 1e-9 apart: eps alone divides, and rounding must not grow past 1e-12."""
    small = (0.0, 1.234567e-9, 2.345678e-9, 4.567891e-9)
    responses = [
        replace(r, task=1.0 / 3.0, old=(0.0,), teacher=(small[i],), mask=(True,), entropy=(0.5,))
        for i, r in enumerate(random_responses(10, (4,), 1))
    ]
    got = computed("puu", padded(responses))
    error = got.advantage_unified_B - (got.advantage_task_B + 1.3 * got.advantage_teacher_B)
    assert float(error.abs().max()) <= 1e-12


def test_a_method_that_returns_another_shape_is_refused() -> None:
    """A [B] value would be spread along the tokens wherever a batch has as many responses as tokens."""

    class Wrong(Grpo):
        def __call__(self, batch: ScoredBatch) -> Advantages:
            return replace(super().__call__(batch), advantage_BT=torch.zeros(batch.responses))

    with pytest.raises(ScoreError, match=r"^advantage_BT: got shape \[8\], expected \[8, 8\], or one column"):
        compute(Wrong(), padded(random_responses(2, (4, 4), 8, holes=False), extra_columns=0))
