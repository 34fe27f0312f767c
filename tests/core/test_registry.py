"""The registry's lines against the methods: what a line declares is what the function reads and returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from nemo_uecr.config.schema import MethodConfig
from nemo_uecr.core.invariants import rehearse
from nemo_uecr.core.methods import METHODS, method_advantage
from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import SCORE_FIELDS, Advantages, Block, Settings
from nemo_uecr.errors import ConfigError, ScoreError
from nemo_uecr.method_registry import ADDED, FROM_THE_RUN, PAPER, REGISTRY
from tests.core import batches
from tests.core.batches import mixed_responses, padded

#: Another legal value of each setting, far enough from the tests' settings to change a result.
OTHER: dict[str, Any] = {
    "alpha": 0.4, "rho": 0.2, "tau_delta": 3.0, "tau_entropy": 3.0, "std_floor": 7.0, "sample_std": True,
    "opd_coef": 0.5, "step": 70, "seed": 12345, "total_steps": 200, "state": {"first_kl": 1.0, "warmup_end": 5.0},
}  # fmt: skip
#: The loss, not the advantage, multiplies the second surrogate by this.
USED_BY_THE_LOSS = {"opd_coef"}
#: What the configuration gives, and not the run.
SCALARS = sorted(vars(Settings()).keys() - FROM_THE_RUN)
TOLERANCES = dict.fromkeys(("budget", "decomposition", "residual_bound", "log_weight"), 1e-6)
ALL = sorted(METHODS)


def test_every_name_once_and_the_papers_first() -> None:
    assert [entry.name for entry in (*PAPER, *ADDED)] == list(REGISTRY) == list(METHODS)
    assert len(PAPER) == 14


@pytest.mark.parametrize("name", ALL)
def test_a_line_names_what_there_is(name: str) -> None:
    """Keys of the configuration, fields of `Settings`, scores and identities: nothing is misspelt in between."""
    method = METHODS[name]
    assert method.config_settings <= set(MethodConfig.model_fields)
    assert method.core_settings <= set(vars(Settings()))
    assert method.scores <= set(SCORE_FIELDS)
    rehearse(name, {key: getattr(batches.SETTINGS, key) for key in SCALARS}, TOLERANCES)


@pytest.mark.parametrize(
    ("slip", "kind", "said"),
    [
        ({"identities": ("finitebudget",)}, ConfigError, "declares 'finitebudget'; expected identities of finite, "),
        ({"identities": ("log_weight",)}, ConfigError, "identity 'log_weight' .* is off by"),
        ({"identities": ("residual_bound",)}, ConfigError, "the method returned no residual"),
        ({"scores": frozenset()}, ConfigError, "the batch has no teacher_logp"),
        ({"scores": frozenset({"teacher_lgp"})}, TypeError, "unexpected keyword argument 'teacher_lgp_BT'"),
        ({"settings": frozenset({"rho"})}, TypeError, "unexpected keyword argument 'rho'"),
        ({"settings": frozenset({"tau_entropi"})}, ConfigError, r"setting tau_entropi; expected settings of .*, rho, "),
        ({"file": "rlds"}, ImportError, r"No module named 'nemo_uecr\.core\.methods\.rlds'"),
        ({"file": "uecr"}, AttributeError, "has no attribute 'rlsd'"),
    ],
)
def test_a_slip_in_a_line_is_seen_before_the_run(
    slip: dict[str, Any], kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong in the author's own code keeps its traceback."""
    monkeypatch.setitem(METHODS, "rlsd", replace(METHODS["rlsd"], **slip))
    with pytest.raises(kind, match=said):
        rehearse("rlsd", {key: getattr(batches.SETTINGS, key) for key in SCALARS}, TOLERANCES)


def test_an_identity_without_its_tolerance_is_named() -> None:
    with pytest.raises(ConfigError, match="no tolerance is given for 'decomposition', an identity of uecr"):
        rehearse("uecr", {key: getattr(batches.SETTINGS, key) for key in SCALARS}, {})


@pytest.mark.parametrize(
    ("strength", "sign", "identities"),
    [(0.5, 1, ("budget", "sign_kept")), (0.0, -1, ("budget",)), (0.0, -1, ("sign_kept",))],
    ids=["weights", "advantages", "signs"],
)
def test_a_slip_within_a_response_is_seen_before_the_run(
    strength: float, sign: int, identities: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that average to 1 only where the gap is its mean, and right ones that the advantage does not follow."""
    from nemo_uecr.core.methods import rlsd

    def slipped(view: View, **_: float) -> Advantages:
        def tokens(block: Block) -> dict[str, torch.Tensor]:
            gap = view.gap(block)
            centred = (gap - gap.sum(1, keepdim=True) / view.count(block)).masked_fill(~block.of(view.batch.mask_BT), 0)
            weight = 1 + strength * torch.tanh(5 * centred)
            return {"advantage_BT": sign * weight * view.column(view.grpo_B, block), "weight_BT": weight}

        return view.tokens(tokens)

    line = replace(METHODS["rlsd"], identities=identities, monitored=())
    monkeypatch.setitem(METHODS, "rlsd", line)
    monkeypatch.setattr(rlsd, "rlsd", slipped)
    with pytest.raises(ConfigError, match=f"identity '{identities[0]}' .* is off by [0-9]"):
        rehearse("rlsd", {key: getattr(batches.SETTINGS, key) for key in SCALARS}, TOLERANCES)


@pytest.mark.parametrize("name", ALL)
def test_a_setting_matters_exactly_where_it_is_declared(name: str) -> None:
    batch, method = padded(mixed_responses(1, (4, 3), 12)), METHODS[name]
    before = method.compute(batch, batches.SETTINGS, detail=True).named_tensors()
    own = {key: {**batches.SETTINGS.parameters, key: each.low + 0.1} for key, each in method.parameters.items()}
    changes = [(key, {key: value}) for key, value in OTHER.items()]
    for key, change in [*changes, *((key, {"parameters": values}) for key, values in own.items())]:
        after = method.compute(batch, replace(batches.SETTINGS, **change), detail=True).named_tensors()
        same = before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
        assert same == (key not in (method.core_settings - USED_BY_THE_LOSS) | method.parameters.keys()), key


@pytest.mark.parametrize("name", ALL)
def test_a_score_is_needed_exactly_where_it_is_declared(name: str) -> None:
    batch, method = padded(mixed_responses(2)), METHODS[name]
    expected = method.compute(batch, batches.SETTINGS).advantage_BT
    for field in SCORE_FIELDS[1:]:  # a batch always has old_logp
        without = replace(batch, **{f"{field}_BT": None})
        if field in method.scores:
            with pytest.raises(ScoreError, match=f"no {field};"):
                method.compute(without, batches.SETTINGS)
        else:
            assert torch.equal(method.compute(without, batches.SETTINGS).advantage_BT, expected)


@pytest.mark.parametrize("name", ALL)
def test_a_group_of_one_is_refused_exactly_by_what_compares(name: str) -> None:
    batch, method = padded(mixed_responses(1, (4, 1))), METHODS[name]
    settings = {key: value for key, value in vars(batches.SETTINGS).items() if key != "parameters"}
    if method.compares:
        with pytest.raises(ScoreError, match="is alone in its group"):
            method.compute(batch, batches.SETTINGS)
    else:
        found = method_advantage(name, batch, unusable="zero", **settings)
        assert torch.equal(found.advantage_BT, method_advantage(name, batch, **settings).advantage_BT)


def test_a_parameter_out_of_range_is_named() -> None:
    settings = replace(batches.SETTINGS, parameters={"mix": 1.5, "bound": 0.2})
    with pytest.raises(ConfigError, match=r"parameters\.mix: got 1\.5, expected a number from 0 to 1"):
        METHODS["rlsd"].compute(padded(mixed_responses(1)), settings)
