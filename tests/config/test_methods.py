"""The torch-free table of what a method needs agrees with the registry; unused settings; the objective."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import load_config
from nemo_uecr.config.methods import METHOD_NEEDS
from nemo_uecr.config.objective import objective
from nemo_uecr.config.unused import unused_line, unused_settings
from nemo_uecr.core.methods import METHODS

DEMO = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local" / "demo.yaml"

# Settings that the trainer fills in from elsewhere, and settings of the configuration that `core` never sees.
FROM_THE_RUN = {"step", "seed"}
OUTSIDE_CORE = {"scoring_noise", "turn_separator"}
NAME_IN_CONFIG = {"sample_std": "std"}


def test_both_tables_have_the_same_methods_in_the_same_order() -> None:
    assert list(METHOD_NEEDS) == list(METHODS)
    assert len(METHOD_NEEDS) == 14


@pytest.mark.parametrize("name", METHOD_NEEDS)
def test_both_tables_agree_on_a_method(name: str) -> None:
    in_core = {NAME_IN_CONFIG.get(setting, setting) for setting in METHODS[name].settings - FROM_THE_RUN}
    assert METHOD_NEEDS[name].settings - OUTSIDE_CORE == in_core
    assert METHOD_NEEDS[name].teacher == METHODS[name].needs_teacher


def unused(*overrides: str) -> tuple[str, ...]:
    loaded = load_config(DEMO, overrides)
    return unused_settings(loaded.config, loaded.origins)


def test_grpo_uses_no_teacher_and_none_of_its_settings() -> None:
    assert unused("method.name=grpo") == (
        "teacher.model_name", "method.alpha", "method.rho", "method.tau_delta", "method.tau_entropy",
    )  # fmt: skip


def test_uecr_uses_everything() -> None:
    loaded = load_config(DEMO, [])
    assert unused_line(loaded.config, loaded.origins) is None


def test_only_what_somebody_wrote_is_reported() -> None:
    assert "method.opd_coef" not in unused("method.name=puu")
    assert unused("method.name=puu", "method.opd_coef=2.0") == (
        "method.rho", "method.tau_delta", "method.tau_entropy", "method.opd_coef",
    )  # fmt: skip


def test_the_report_is_one_line() -> None:
    loaded = load_config(DEMO, ["method.name=ecr_no_gap"])
    assert unused_line(loaded.config, loaded.origins) == "not used by method ecr_no_gap: method.tau_delta"


def text_of(*overrides: str) -> str:
    config = load_config(DEMO, overrides).config
    return objective(config, advantage=METHODS[config.method.name].equation)


def test_the_objective_of_uecr() -> None:
    overrides = ("loss.reference_kl=0.001", "loss.clip_high=0.28", "method.rho=0.25")
    text = text_of(*overrides)
    assert text.startswith("loss = PG(A; clip 0.2/0.28) + 0.001 KL3(ref); A = A^U + rho A^task|U q; ")
    assert text.endswith("; alpha = 1, rho = 0.25, tau_delta = 1, tau_entropy = 1")


def test_the_objective_has_no_reference_where_its_weight_is_zero() -> None:
    assert "KL3" not in text_of("loss.reference_kl=0")


def test_the_naive_hybrid_has_two_surrogates() -> None:
    text = text_of("method.name=grpo_plus_opd", "method.opd_coef=0.5", "loss.reference_kl=0")
    expected = "loss = PG(A^GRPO; clip 0.2/0.2) + 0.5 PG(clip(delta, -5, 5); clip 0.2/0.2);"
    assert text.startswith(expected)


def test_only_settings_that_the_method_uses_are_shown() -> None:
    assert text_of("method.name=grpo").endswith("the same on every token")
    assert text_of("method.name=grpo", "method.std=sample").endswith("; std = sample")


@pytest.mark.parametrize("name", METHOD_NEEDS)
def test_every_objective_is_one_line(name: str) -> None:
    text = text_of(f"method.name={name}")
    assert text.startswith("loss = PG(")
    assert "\n" not in text
