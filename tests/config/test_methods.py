"""What the configuration reads off the registry: settings, parameters, teacher; unused settings; the objective."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nemo_uecr.config.load import load_config
from nemo_uecr.config.methods import objective, unused_line
from nemo_uecr.config.schema import MethodConfig
from nemo_uecr.core.records import Settings
from nemo_uecr.errors import ConfigError
from nemo_uecr.method_registry import FROM_THE_RUN, REGISTRY, SETTINGS

DEMO = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local" / "demo.yaml"


@pytest.mark.parametrize("name", REGISTRY)
def test_a_line_of_the_registry_names_what_both_sides_have(name: str) -> None:
    """Keys of the configuration on one side, fields of `Settings` on the other; nothing is misspelt in between."""
    entry = REGISTRY[name]
    assert entry.config_settings <= set(MethodConfig.model_fields)
    assert entry.core_settings <= set(vars(Settings()))
    assert entry.scores <= {"teacher_logp", "teacher_entropy", "initial_logp"}


def test_a_line_may_name_every_key_of_the_method_section() -> None:
    assert set(MethodConfig.model_fields) - {"name", "parameters"} == SETTINGS - FROM_THE_RUN


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(DEMO, overrides)
    return str(caught.value)


def test_a_methods_own_parameters_are_completed_and_can_be_set() -> None:
    loaded = load_config(DEMO, ["method.name=rlsd", "method.parameters.mix=1"])
    assert loaded.config.method.parameters == {"mix": 1.0, "bound": 0.2}
    assert loaded.origins["method.parameters.mix"] == "override"
    assert loaded.origins["method.parameters.bound"] == "default"
    assert load_config(DEMO, []).config.method.parameters == {}
    assert text_of("method.name=rlsd", "method.parameters.mix=0.25").endswith("; mix = 0.25, bound = 0.2")


def test_a_wrong_parameter_is_one_line() -> None:
    assert refusal("method.name=rlsd", "method.parameters.mixx=1") == (
        "method.parameters.mixx: no such parameter; the nearest is 'mix'"
    )
    assert refusal("method.parameters.mixx=1").endswith("no such parameter; method uecr has none of its own")


def test_another_methods_parameter_is_reported_as_unused() -> None:
    assert unused("method.name=g_opd", "method.parameters.mix=0.3")[-1] == "method.parameters.mix"
    assert "method.parameters.extrapolation" not in unused("method.name=g_opd", "method.parameters.extrapolation=2")


def unused(*overrides: str) -> list[str]:
    loaded = load_config(DEMO, overrides)
    return (unused_line(loaded.config, loaded.origins) or "").partition(": ")[2].split(", ")


def test_grpo_uses_no_teacher_and_none_of_its_settings() -> None:
    assert unused("method.name=grpo") == [
        "teacher.model_name", "method.alpha", "method.rho", "method.tau_delta", "method.tau_entropy",
    ]  # fmt: skip


def text_of(*overrides: str) -> str:
    return objective(load_config(DEMO, overrides).config)


def test_the_objective_of_uecr() -> None:
    overrides = ("loss.reference_kl=0.001", "loss.clip_high=0.28", "method.rho=0.25")
    text = text_of(*overrides)
    assert text.startswith("loss = PG(A; clip 0.2/0.28) + 0.001 KL3(ref); A = A^U + rho A^task|U q; ")
    assert text.endswith("; alpha = 1, rho = 0.25, tau_delta = 1, tau_entropy = 1")


def test_the_second_surrogate_of_any_method_is_told_by_its_own_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss knows two advantages; only the method knows what they are."""
    entry = replace(REGISTRY["grpo_plus_opd"], name="rlsd", equation="A = A^GRPO, A_opd = the mean gap of the turn")
    monkeypatch.setitem(REGISTRY, "rlsd", entry)
    assert text_of("method.name=rlsd", "method.opd_coef=0.5", "loss.reference_kl=0") == (
        "loss = PG(A; clip 0.2/0.2) + 0.5 PG(A_opd; clip 0.2/0.2); A = A^GRPO, A_opd = the mean gap of the turn; "
        "opd_coef = 0.5"
    )


def test_core_settings_leave_only_step_and_seed_to_the_run() -> None:
    """What a back end does not have to add is there, under the name that core reads it by."""
    method = MethodConfig(name="uecr", alpha=1.5, rho=0.25, tau_delta=2.0, tau_entropy=0.5, std="sample")
    made = Settings(**method.core_settings())
    assert {name for name, value in vars(made).items() if value is None} == {"step", "seed"}
    assert (made.alpha, made.rho, made.tau_delta, made.tau_entropy, made.sample_std) == (1.5, 0.25, 2.0, 0.5, True)
