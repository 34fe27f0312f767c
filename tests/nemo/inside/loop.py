"""Runs NeMo-RL's real ``grpo_train`` in this process."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock, patch

import torch

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.core.methods import METHODS
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.estimator import UecrEstimator
from nemo_uecr.nemo.loss import UecrLoss
from nemo_uecr.nemo.policy import PolicyMethods
from nemo_uecr.nemo.step import StepContext
from nemo_uecr.nemo.translate import native_config
from nemo_uecr.stopping import StopRequest
from tests.config.shipped import CONFIGS
from tests.nemo.inside.tiny_world import (
    TEMPERATURE,
    VOCABULARY,
    TinyGeneration,
    TinyModel,
    TinyPolicy,
    TinyProblems,
    TinyTeacher,
    TinyTokenizer,
    make_environment,
)

PROMPTS, GROUP = 4, 8
#: NeMo-RL's forms in place of the paper's.
NATIVE = [f"conventions.{name}=nemo_rl" for name in ("kl", "grouping", "filters")]
SMALL = [
    "run.seed=1", f"rollout.prompts_per_step={PROMPTS}", f"rollout.responses_per_prompt={GROUP}",
    f"train.minibatch_responses={PROMPTS * GROUP}", f"rollout.temperature={TEMPERATURE}", "loss.reference_kl=0.001",
    f"student.vocabulary={VOCABULARY}", "scoring.chunk_tokens=64", "cluster.gpus_per_node=1", "method.rho=0.5",
    "tolerances.first_ratio=1e-5", "telemetry.save_batch_every=0", "checkpoint.every=0",
]  # fmt: skip


def config_of(method: str, *changes: str) -> NemoConfig:
    """A run of the tiny world."""
    teacher = "teacher" if METHODS[method].needs_teacher() else "null"
    given = [f"method.name={method}", f"teacher.model_name={teacher}", *SMALL, *changes]
    return load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", given)


class OurTinyPolicy(PolicyMethods, TinyPolicy):
    """Our policy over the tiny one, which scores in this process."""

    score_tokens = TinyPolicy.score_tokens

    def assert_room(self, *, waking: bool) -> None:
        self.events.append("room to wake" if waking else "room to score")


def train_ours(
    config: NemoConfig,
    *,
    steps: int = 1,
    teacher: Callable[[TinyModel, list[str]], TinyTeacher] = TinyTeacher,
    problems: TinyProblems | None = None,
    stop: StopRequest | None = None,
) -> Any:
    """Our estimator, policy and loss in the real loop; returns the policy, with the metrics of each step."""
    context = StepContext(config, completed_steps=0, tokenizer=TinyTokenizer())
    minibatch, reads = config.train.minibatch_responses, config.method.needs_teacher()
    made: Any = OurTinyPolicy(
        TinyModel(0), minibatch=minibatch, context=context,
        teachers={"teacher": teacher(TinyModel(9), [])} if reads else {},
    )  # fmt: skip
    if reads:
        made._teachers["teacher"].events = made.events
    with upstream.substitutions(
        estimator=lambda: UecrEstimator(context), colocated_worker_groups=3, evaluation=None, stop=stop or StopRequest()
    ):
        _loop(made, UecrLoss(config, native_of(config)), config, steps, problems or TinyProblems())
    return made


def train_native(config: NemoConfig, *, steps: int) -> Any:
    """NeMo-RL's estimator and loss in the same loop."""
    policy = TinyPolicy(TinyModel(0), minibatch=config.train.minibatch_responses)
    _loop(policy, upstream.native("ClippedPGLossFn")(native_of(config).loss_fn), config, steps, TinyProblems())
    return policy


def native_of(config: NemoConfig) -> Any:
    """NeMo-RL's configuration of the run."""
    return native_config(config, "of the test")


def _loop(policy: Any, loss: Any, config: NemoConfig, steps: int, problems: TinyProblems) -> None:
    from nemo_rl.data.collate_fn import rl_collate_fn
    from torchdata.stateful_dataloader import StatefulDataLoader

    grpo = importlib.import_module("nemo_rl.algorithms.grpo")
    config = config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})
    torch.manual_seed(5)
    prompts = config.rollout.prompts_per_step
    loader = StatefulDataLoader(
        problems, batch_size=prompts, shuffle=False, collate_fn=rl_collate_fn, drop_last=True, num_workers=0
    )
    logger = MagicMock()
    generation = TinyGeneration(policy.model, upstream.native("BatchedDataDict"), policy.events)
    with (
        patch.object(grpo, "refit_policy_generation"),
        patch.object(grpo, "maybe_gpu_profile_step"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        grpo.grpo_train(
            policy, generation, loader, None, TinyTokenizer(), loss, {"t": make_environment()}, None, logger,
            MagicMock(), _fresh_state(grpo), native_of(config),
        )  # fmt: skip
    calls = [call for call in logger.log_metrics.call_args_list if call.kwargs.get("prefix") == "train"]
    policy.metrics = [call.args[0] for call in calls if "loss" in call.args[0]]


def _fresh_state(grpo: Any) -> Any:
    """The state of a loop that begins: a mapping in NeMo-RL 0.7, a dataclass since."""
    named = getattr(grpo, "_initial_grpo_save_state", None)
    return named() if named is not None else grpo._default_grpo_save_state()
