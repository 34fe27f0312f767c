"""What a method's class declares is what its function reads and returns; every method in the folder, by itself."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_uecr.core import methods
from nemo_uecr.core.functions import method_advantage
from nemo_uecr.core.invariants import smoke_test
from nemo_uecr.core.methods import METHODS, Advantages, method_of
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.core.methods.rlsd import Rlsd
from nemo_uecr.core.record import SCORE_FIELDS, ScoredBatch
from nemo_uecr.errors import ConfigError, ScoreError
from tests.conftest import ROOT
from tests.core.batches import (
    OF_THE_RUN,
    SETTINGS,
    computed,
    configured,
    mixed_responses,
    padded,
    random_responses,
    same_bits,
    with_turns,
)

TOLERANCES = dict.fromkeys(("budget", "decomposition", "residual_bound", "log_weight"), 1e-6)
ALL = sorted(METHODS)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("class Mine(Method):\n    name = 'mine'\n", r"expected @dataclass\(frozen=True, kw_only=True\) above Mine"),
        ("@dataclass\nclass Mine(Method):\n    name = 'mine'\n", r"mine: .*@dataclass\(frozen=True, kw_only=True\)"),
        ("@FROZEN\nclass Mine(Method):\n    name = 'mine'\n    step: Positive = 1.0\n", "mine: the setting step"),
        ("@FROZEN\nclass Mine(Method):\n    width: Positive = 1.0\n", "expected a name in Mine"),
        ("@FROZEN\nclass Mine(Method):\n    name = 'rlsd'\n", r"two methods are named 'rlsd', in .*\.(mine|rlsd) and"),
    ],
)
def test_a_slip_in_a_class_is_seen_when_it_is_found(
    body: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom nemo_uecr.core.methods.base import Method, Positive\n"
        f"FROZEN = dataclass(frozen=True, kw_only=True)\n{body}"
    )
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    with pytest.raises(ConfigError, match=fault):
        methods._found()
    sys.modules.pop(f"{methods.__name__}.mine", None)
    vars(methods).pop("mine", None)


@pytest.mark.parametrize("shape", ["[B]", "[T]"])
def test_a_value_of_another_shape_is_refused_by_the_synthetic_batch(shape: str) -> None:
    class Wrong(Grpo):
        name = "wrong"

        def __call__(self, batch: ScoredBatch) -> Advantages:
            value = batch.task_reward_B if shape == "[B]" else batch.old_logp_BT.sum(0).unsqueeze(1)
            return Advantages(batch.old_logp_BT * value)

    with pytest.raises(ConfigError, match="method wrong on a synthetic batch"):
        smoke_test(Wrong(), TOLERANCES)


@pytest.mark.parametrize("name", ALL)
def test_a_method_keeps_what_it_promises_on_a_made_batch(name: str) -> None:
    assert METHODS[name].reads <= set(SCORE_FIELDS)
    assert METHODS[name].equation()
    assert METHODS[name].source is not None
    smoke_test(configured(name, SETTINGS), TOLERANCES)


@pytest.mark.parametrize(
    ("slip", "said"),
    [
        ({"identities": ("finitebudget",)}, "declares 'finitebudget'"),
        ({"identities": ("log_weight",)}, "identity 'log_weight' .* is off by"),
        ({"identities": ("residual_bound",)}, "no residual"),
        ({"reads": frozenset()}, "the batch has no teacher_logp"),
        ({"opd_coef": 1.0}, "expected opd_coef exactly where it returns advantage_opd_BT"),
    ],
)
def test_a_slip_in_a_declaration_is_seen_before_the_run(
    slip: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slip.items():
        monkeypatch.setattr(Rlsd, name, value)
    with pytest.raises(ConfigError, match=said):
        smoke_test(Rlsd(), TOLERANCES)


def test_a_state_that_no_checkpoint_can_hold_is_seen_before_the_run() -> None:
    class Counting(Grpo):
        def __call__(self, batch: ScoredBatch) -> Advantages:
            return replace(super().__call__(batch), state={"seen": batch.token_count_B.sum()})

    with pytest.raises(ConfigError, match=r"state\['seen'\] is a Tensor; expected a float"):
        smoke_test(Counting(), TOLERANCES)


def test_an_identity_without_its_tolerance_is_named() -> None:
    with pytest.raises(ConfigError, match="'decomposition'"):
        smoke_test(configured("uecr", SETTINGS), {})


@pytest.mark.parametrize(
    ("strength", "sign", "own"),
    [(0.5, 1, ("budget", "sign_kept")), (0.0, -1, ("budget",)), (0.0, -1, ("sign_kept",))],
    ids=["weights", "advantages", "signs"],
)
def test_a_slip_within_a_response_is_seen_before_the_run(strength: float, sign: int, own: tuple[str, ...]) -> None:
    """Weights that average to 1 only where the gap is its mean, and right ones that the advantage does not follow."""

    @dataclass(frozen=True, kw_only=True)
    class Slipped(Grpo):
        name, source, reads, identities = "slipped", "", frozenset({"teacher_logp"}), own

        def __call__(self, batch: ScoredBatch) -> Advantages:
            grpo = super().__call__(batch)
            w_BT = 1 + strength * torch.tanh(5 * (batch.gap_BT - batch.column(batch.token_mean(batch.gap_BT))))
            return replace(grpo, advantage_BT=sign * w_BT * grpo.advantage_BT, weight_BT=w_BT)

    with pytest.raises(ConfigError, match=f"identity '{own[0]}' .* is off by [0-9]"):
        smoke_test(Slipped(), TOLERANCES)


@pytest.mark.parametrize("name", ALL)
def test_a_score_is_needed_exactly_where_it_is_declared(name: str) -> None:
    batch = padded(mixed_responses(2))
    expected = computed(name, batch).advantage_BT
    for field in SCORE_FIELDS[1:]:  # a batch always has old_logp
        without = replace(batch, **{f"{field}_BT": None})
        if field in METHODS[name].reads:
            with pytest.raises(ScoreError, match=f"no {field};"):
                computed(name, without)
        else:
            assert torch.equal(computed(name, without).advantage_BT, expected)


@pytest.mark.parametrize("name", ALL)
def test_a_group_of_one_is_refused_exactly_by_what_compares(name: str) -> None:
    batch = padded(mixed_responses(1, (4, 1)))
    if METHODS[name].needs_group:
        with pytest.raises(ScoreError, match="is alone in its group"):
            computed(name, batch)
    else:
        found = method_advantage(name, batch, unusable="zero", **vars(SETTINGS))
        assert torch.equal(found.advantage_BT, computed(name, batch).advantage_BT)


def test_what_a_method_reads_of_the_run_matters() -> None:
    batch = padded(mixed_responses(1, (4, 3), 12))
    other = {"step": 70, "seed": 12345, "total_steps": 200, "state": {"first_kl": 1.0, "warmup_end": 5.0}}
    for name, method in METHODS.items():
        before = computed(name, batch).loss_tensors()
        for key in OF_THE_RUN:
            after = computed(name, batch, replace(SETTINGS, **{key: other[key]})).loss_tensors()
            same = all(torch.equal(before[each], after[each]) for each in before)
            assert same == (key not in method.reads_run), (name, key)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [("rlsd", "mix", 1.5), ("uecr", "rho", 1.0), ("puu", "alpha", float("nan")), ("grpo", "sample_std", "no")],
)
def test_a_setting_out_of_range_is_named(name: str, setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} is "):
        method_of(name, {"alpha": 1.0, "rho": 0.5, "tau_delta": 1.0, "tau_entropy": 1.0, setting: value})


@pytest.mark.parametrize("name", ALL)
def test_the_batch_is_not_written_to_and_the_result_has_no_graph(name: str) -> None:
    batch = padded(with_turns(random_responses(6), 6), torch.float32)
    batch = replace(batch, old_logp_BT=batch.old_logp_BT.requires_grad_())
    before = {k: v.detach().clone() for k, v in vars(batch).items() if isinstance(v, Tensor)}
    found = computed(name, batch)
    assert not any(tensor.requires_grad for tensor in found.named_tensors().values())
    for key, value in before.items():
        assert same_bits(getattr(batch, key).detach(), value), key


@pytest.mark.parametrize("name", ["Uecr", "UecrTrust", "GrpoPlusOpd", "Atod"])
def test_the_maps_teacher_of_noise_changes_what_a_method_makes_of_a_batch(name: str) -> None:
    """The shipped method on the scores of other tokens; the same ones at each call."""
    noisy = f"{ROOT}/examples/configs/study/noise_teacher.py:{name}"
    shipped = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
    batch = padded(mixed_responses(3), junk=0.0)
    plain, first, second = (computed(each, batch).named_tensors() for each in (shipped, noisy, noisy))
    assert plain.keys() == first.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(plain[key], first[key]) for key in plain)
