"""Types, limits and the rules that span keys; each refusal is one line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import known_keys, load_config
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.schema import REQUIRED_SETTINGS, Config
from nemo_uecr.errors import ConfigError
from nemo_uecr.method_registry import REGISTRY

DEMO = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local" / "demo.yaml"


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(DEMO, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


WRONG = [
    ("method.rho=1.0", "method.rho: got 1.0, expected less than 1 (set on the command line)"),
    ("rollout.responses_per_prompt=1", "rollout.responses_per_prompt: got 1, expected greater than or equal to 2"),
    ("train.betas=[0.9]", "train.betas: got [0.9]"),
    ("run.folder=", 'run.folder: got ""'),
    ("device=gpu", "device: got \"gpu\", expected 'auto', 'cpu' or 'cuda'"),
    # Nothing is coerced.
    ("train.steps='3'", 'train.steps: got "3", expected a valid integer'),
    ("train.steps=3.0", "train.steps: got 3.0"),
    ("train.steps=true", "train.steps: got true"),
    ("train.learning_rate=.nan", "train.learning_rate: got NaN, expected a finite number"),
    ("data.shuffle=1", "data.shuffle: got 1"),
    ("method=3", "method: got 3"),
    ("evaluation.benchmarks=[a]", 'evaluation.benchmarks: got ["a"]'),
]


@pytest.mark.parametrize(("override", "message"), WRONG, ids=[override for override, _ in WRONG])
def test_a_wrong_value_is_one_line(override: str, message: str) -> None:
    assert refusal(override).startswith(message)


def test_the_template_must_have_the_question() -> None:
    assert refusal("data.prompt_template=Solve it.") == (
        "data.prompt_template: got 'Solve it.', expected a text that contains {question}"
    )


def test_an_unknown_method_names_the_nearest() -> None:
    assert refusal("method.name=uecrr").startswith(
        "method.name: got 'uecrr', the nearest method is 'uecr'; known methods: grpo, pg_opd,"
    )


@pytest.mark.parametrize("method", REGISTRY)
def test_a_method_asks_for_the_settings_it_uses_and_no_other(method: str) -> None:
    needed = [key for key in REQUIRED_SETTINGS if key in REGISTRY[method].settings]
    spare = [f"method.{key}=null" for key in REQUIRED_SETTINGS if key not in needed]
    assert load_config(DEMO, [f"method.name={method}", *spare]).config.method.name == method
    for key in needed:
        assert refusal(f"method.name={method}", f"method.{key}=null") == (
            f"method.{key}: missing, but method {method} needs it; write method.{key}=VALUE"
        )


@pytest.mark.parametrize("method", REGISTRY)
def test_a_teacher_is_asked_for_where_it_is_read(method: str) -> None:
    overrides = [f"method.name={method}", "teacher.model_name=null"]
    if REGISTRY[method].needs_teacher:
        assert refusal(*overrides).startswith(f"teacher.model_name: got null, but method {method} reads a teacher")
    else:
        assert load_config(DEMO, overrides).config.teacher.model_name is None


# demo.yaml or these overrides: 6 prompts * 4 responses = 24 responses a step
BATCH = ("rollout.prompts_per_step=6", "rollout.responses_per_prompt=4", "train.microbatch_responses=1")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.minibatch_responses=5",), "train.minibatch_responses: got 5, expected a divisor of"),
        (
            ("train.minibatch_responses=8", "train.microbatch_responses=9"),
            "train.microbatch_responses: got 9, expected at most train.minibatch_responses = 8",
        ),
        (("evaluation.temperature=0",), "evaluation.samples: got 12, expected 1 because"),
        (
            ("evaluation.benchmarks={}", "checkpoint.keep_best=true"),
            "checkpoint.keep_best: got true, but evaluation.benchmarks is empty",
        ),
    ],
)
def test_keys_that_contradict_each_other(overrides: tuple[str, ...], message: str) -> None:
    assert refusal(*BATCH, *overrides).startswith(message)


def test_limits_themselves_are_legal() -> None:
    batch = load_config(DEMO, [*BATCH, "train.minibatch_responses=8", "train.microbatch_responses=8"]).config
    assert batch.train.microbatch_responses == 8
    assert load_config(DEMO, ["evaluation.temperature=0", "evaluation.samples=1"])


def test_every_key_says_what_it_means() -> None:
    for schema in (Config, NemoConfig):
        keys = known_keys(schema)
        sections = {name for name in keys if any(other.startswith(f"{name}.") for other in keys)}
        assert [name for name, field in keys.items() if name not in sections and not field.description] == []
