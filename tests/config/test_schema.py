"""Types, limits, rules that span keys, and what a method makes of the `method` section; each refusal is one line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nemo_uecr.config.load import load_config
from nemo_uecr.config.methods import objective, unused_line
from nemo_uecr.config.schema import CallReward, Config, VerifierReward
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.methods.baselines import GrpoPlusOpd
from tests.config.shipped import DEMO, refusal

# 6 prompts * 4 responses = 24 responses a step
BATCH = ("rollout.prompts_per_step=6", "rollout.responses_per_prompt=4", "train.microbatch_responses=1")
WRONG = {
    "method.rho=1.0": "method.rho: got 1.0, expected a number >= 0 and < 1",
    "method={alpha: a, rho: 1.0}": "method.alpha: got 'a', expected a valid number; method.rho: got 1.0, expected a "
    "number >= 0 and < 1",
    "device=gpu": "device: got \"gpu\", expected 'auto', 'cpu' or 'cuda'",
    "train.steps='3'": 'train.steps: got "3", expected a valid integer',  # nothing is coerced
    "train.learning_rate=.nan": "train.learning_rate: got NaN",
    "method=3": "method: got 3, expected a section",
    "method.name=uecrr": "method.name: got 'uecrr', the nearest method is 'uecr'; known methods: atod, ",
    "train.minibatch_responses=5": "train.minibatch_responses: got 5, expected a divisor of",
    "train.microbatch_responses=25": "train.microbatch_responses: got 25, expected at most train.minibatch_responses",
    "evaluation.temperature=0": "evaluation.samples: got 12, expected 1 because",
    "teacher.quantize=int4": 'teacher.quantize: got "int4", expected',
    "reward=maths": "reward.verifier: got \"maths\", expected 'math' (set on the command line)",
    "evaluation.benchmarks={}": "checkpoint.keep_best: got true, but evaluation.benchmarks is empty",
}


@pytest.mark.parametrize(("override", "message"), WRONG.items(), ids=WRONG)
def test_a_wrong_value_is_one_line(override: str, message: str) -> None:
    assert refusal(*BATCH, "train.minibatch_responses=24", "checkpoint.keep_best=true", override).startswith(message)


def test_a_setting_that_is_off_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS["atod"], "__doc__", "A = A^GRPO with turn_separator.")
    assert "turn_separator = None" in objective(load_config(DEMO, ["method.name=atod"]).config)


def test_a_reward_in_one_word_is_the_verifier_or_a_function() -> None:
    rewards = load_config(DEMO, ["reward=[math, rewards/length.py:too_long]"]).config.reward
    assert [type(each) for each in rewards] == [VerifierReward, CallReward]
    assert load_config(DEMO, ["reward=rewards/length.py:too_long"]).config.reward == rewards[1:]


def test_a_rounded_teacher_asks_for_a_floor_above_the_measured_noise() -> None:
    rounded = ("teacher.quantize=nf4", "method.std_floor=0.2")
    for words in ((), ("method.scoring_noise=0.2",), ("method.scoring_noise=0.1", "method.std_floor=0")):
        assert refusal(*rounded, *words).startswith("teacher.quantize: got nf4 with method.scoring_noise")
    load_config(DEMO, [*rounded, "method.scoring_noise=0.1"])
    load_config(DEMO, [*rounded, "method.name=ecr_alpha_zero"])  # its group normalisation reads the verifier alone


# Methods


@pytest.mark.parametrize("method", METHODS)
def test_a_method_asks_for_what_it_reads_and_for_nothing_else(method: str) -> None:
    needed = METHODS[method].required()
    stated = ("alpha", "rho", "tau_delta", "tau_entropy")
    words = [f"method.name={method}", *(f"method.{key}=null" for key in stated if key not in needed)]
    assert load_config(DEMO, words).config.method.name == method
    for key in needed:
        assert refusal(*words, f"method.{key}=null").startswith(f"method.{key}: missing, but method {method} needs it")
    if METHODS[method].needs_teacher():
        assert refusal(*words, "teacher.model_name=null").startswith("teacher.model_name: got null, but method")
    else:
        assert load_config(DEMO, [*words, "teacher.model_name=null"]).config.teacher.model_name is None


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ((), (1e-5, 1e-5)),
        (("student.dtype=bfloat16",), (0.05, 0.9)),
        (("student.dtype=bfloat16", "device=cuda", "tolerances.first_ratio_p99=0.5"), (0.05, 0.5)),
        (("student.dtype=bfloat16", "device=cpu"), (1e-5, 1e-5)),
        (("student.dtype=float32", "device=cuda", "tolerances.budget=1e-5"), (1e-5, 1e-5)),
    ],
)
def test_the_first_ratio_has_room_where_a_gpu_may_round(given: Sequence[str], bounds: tuple[float, float]) -> None:
    """What is written down says the same to whoever reads it again."""
    config = load_config(DEMO, ["device=auto", "student.dtype=float32", *given]).config
    for read in (config, Config.model_validate(config.model_dump(mode="json"))):
        assert (read.tolerances.first_ratio, read.tolerances.first_ratio_p99) == bounds


def unused(*overrides: str) -> list[str]:
    loaded = load_config(DEMO, overrides)
    return (unused_line(loaded.config, loaded.origins) or "").partition(": ")[2].split(", ")


def test_what_a_method_does_not_use_is_reported() -> None:
    assert unused("method.name=grpo") == [
        "teacher.model_name", "method.alpha", "method.rho", "method.tau_delta", "method.tau_entropy",
    ]  # fmt: skip
    assert unused("method.name=g_opd", "method.mix=0.3")[-1] == "method.mix"
    assert "method.extrapolation" not in unused("method.name=g_opd", "method.extrapolation=2")


def test_the_second_surrogate_is_described_by_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss knows two advantages; only the method knows what they are."""
    monkeypatch.setattr(GrpoPlusOpd, "__doc__", "A = A^GRPO, A_opd = the mean gap of the turn.")
    words = ["method.name=grpo_plus_opd", "method.opd_coef=0.5", "loss.reference_kl=0"]
    assert objective(load_config(DEMO, words).config) == (
        "loss = PG(A; clip 0.2/0.2) + 0.5 PG(A_opd; clip 0.2/0.2); A = A^GRPO, A_opd = the mean gap of the turn; "
        "opd_coef = 0.5"
    )
