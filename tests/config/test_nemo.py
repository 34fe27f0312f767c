"""The shipped NeMo-RL configurations compose, differ only where they say, and impossible ones are refused."""

from __future__ import annotations

import re

import pytest

from nemo_uecr.config.load import backend_of, load_nemo_config
from nemo_uecr.errors import ConfigError
from tests.config.shipped import CONFIGS, GIVEN, GRPO, OTHERS, SCALES


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", OTHERS)
def test_every_method_composes_at_each_scale(scale: str, name: str) -> None:
    words = [*GIVEN[scale], *(GRPO if name == "grpo" else [f"method.name={name}"])]
    config = load_nemo_config(CONFIGS / f"uecr_qwen3_{scale}.yaml", words)
    assert config.method.name == name
    assert config.run.folder == f"runs/{name}_qwen3_{scale}"


@pytest.mark.parametrize("name", ["grpo_teacher_qwen3_4b", "grpo_teacher_qwen3_8b"])
def test_teacher_recipes_need_no_teacher(name: str) -> None:
    config = load_nemo_config(CONFIGS / f"{name}.yaml", [])
    assert (config.method.name, config.teacher.model_name) == ("grpo", None)


LONG = "rollout.max_response_tokens=16383"  # 2048 + 16383 = 18431; sequence parallelism on 2 GPUs makes 18432 of them


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["teacher.model_name=null"], "method uecr reads a teacher"),
        (["train.minibatch_responses=1000"], "train.minibatch_responses: got 1000"),
        (["scoring.tokens_per_microbatch=100"], "scoring.tokens_per_microbatch: got 100"),
        (["method.name=g_opd"], "method.name: got 'g_opd'"),
        (["student.parallel.tensr=2"], "unknown key student.parallel.tensr"),
        ([*GRPO, "teacher.dedicated_gpus=1"], "teacher.dedicated_gpus: got 1, but method grpo"),
        (["teacher.model_name=null", "teachers={a: {model_name: x}}", "teacher.dedicated_gpus=1"], "but several"),
        (["teachers={a: {model_name: x}}"], "teacher and teachers.a: got both"),
        (["teacher.model_name=null", "teachers={a: {self: initial}}"], "unknown key teachers.a.self"),
        *(
            ([LONG, f"{section}.tokens_per_microbatch=18431", f"{role}.parallel.tensor=2",
              f"{role}.parallel.sequence=true"], f"{section}.tokens_per_microbatch: got 18431, expected at least")
            for section, role in (("train", "student"), ("scoring", "teacher"))
        ),
    ],
)  # fmt: skip
def test_an_impossible_run_is_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GIVEN["1p7b"], *overrides])
    assert "\n" not in str(caught.value)


def test_sequences_are_padded_for_both_layouts() -> None:
    """Context 3 asks for 2 * 3 = 6, sequence parallelism on 4 for 4: 12 serves both, 6 would not."""
    layouts = ["student.parallel.context=3", "teacher.parallel.tensor=4", "teacher.parallel.sequence=true"]
    words = [*GIVEN["1p7b"], "cluster.gpus_per_node=12", *layouts, "rollout.max_response_tokens=16000"]
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", words)
    assert config.sequence_multiple == 12
    assert [config.packed(tokens) for tokens in (1, 12, 13)] == [12, 12, 24]


def test_the_backend_is_read_first() -> None:
    assert backend_of(CONFIGS / "uecr_qwen3_4b.yaml", []) == "nemo_rl"
    assert backend_of(CONFIGS / "uecr_qwen3_4b.yaml", ["backend=local"]) == "local"
