"""Runs NeMo-RL's real ``grpo_train`` in this process, on a recipe of NeMo-RL's."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch

from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.core.methods import METHODS
from nemo_uecr.nemo import recipe, rules, upstream
from nemo_uecr.nemo.estimator import UecrEstimator
from nemo_uecr.nemo.loss import UecrLoss
from nemo_uecr.nemo.policy import PolicyMethods
from nemo_uecr.nemo.recipe import Settings
from nemo_uecr.nemo.step import StepContext
from nemo_uecr.stopping import StopRequest
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

RECIPE = Path(os.environ.get("NEMO_RL_SOURCE", ".")) / "examples" / "configs" / "grpo_math_8B_megatron.yaml"
PROMPTS, GROUP = 4, 8
SMALL = [
    "grpo.seed=1", f"grpo.num_prompts_per_step={PROMPTS}", f"grpo.num_generations_per_prompt={GROUP}",
    "policy.model_name=student", f"policy.train_global_batch_size={PROMPTS * GROUP}", "grpo.val_period=0",
    f"policy.generation.temperature={TEMPERATURE}", "loss_fn.reference_policy_kl_penalty=0.001",
    "grpo.use_leave_one_out_baseline=false", "grpo.overlong_filtering=false", "checkpointing.enabled=false",
    "++uecr.kl=paper", "++uecr.chunk_tokens=64",
    "++uecr.tolerances={first_ratio: 1.0e-5, first_ratio_p99: 1.0e-5}",
]  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run of the tiny world: what the adapter reads of its recipe, and NeMo-RL's configuration."""

    settings: Settings
    native: Any


def run_of(method: str, *changes: str) -> Run:
    """A recipe of NeMo-RL's with the method and further overrides in NeMo-RL's spelling."""
    named = f"{{name: {method}, alpha: 1.0, rho: 0.5, tau_delta: 1.0, tau_entropy: 1.0}}"
    teacher = ["++uecr.teacher.model_name=teacher"] if METHODS[method].needs_teacher() else []
    values = load_recipe(RECIPE, [*SMALL, f"++uecr.method={named}", *teacher, *changes]).values
    section = recipe.section_of(values)
    assert rules.faults_of(values, section) == []
    rules.apply(values, rules.adjusted(values, section))
    return Run(recipe.view(values, section, VOCABULARY), upstream.native("MasterConfig")(**values))


class OurTinyPolicy(PolicyMethods, TinyPolicy):
    """Our policy over the tiny one, which scores in this process."""

    score_tokens = TinyPolicy.score_tokens

    def assert_room(self, *, waking: bool) -> None:
        self.events.append("room to wake" if waking else "room to score")


def train_ours(
    run: Run,
    *,
    steps: int = 1,
    teacher: Callable[[TinyModel, list[str]], TinyTeacher] = TinyTeacher,
    problems: TinyProblems | None = None,
    stop: StopRequest | None = None,
) -> Any:
    """Our estimator, policy and loss in the real loop; returns the policy, with the metrics of each step."""
    settings = run.settings
    context = StepContext(settings, tokenizer=TinyTokenizer())
    reads = settings.method.needs_teacher()
    made: Any = OurTinyPolicy(
        TinyModel(0), minibatch=settings.minibatch_responses, context=context,
        teachers={"teacher": teacher(TinyModel(9), [])} if reads else {},
    )  # fmt: skip
    if reads:
        made._teachers["teacher"].events = made.events
    with upstream.substitutions(
        estimator=lambda: UecrEstimator(context), more_worker_groups=1, stop=stop or StopRequest(), timeouts=[]
    ):
        _loop(made, UecrLoss(settings, run.native.loss_fn), run, steps, problems or TinyProblems())
    return made


def train_native(run: Run, *, steps: int) -> Any:
    """NeMo-RL's estimator and loss in the same loop."""
    policy = TinyPolicy(TinyModel(0), minibatch=run.settings.minibatch_responses)
    _loop(policy, upstream.native("ClippedPGLossFn")(run.native.loss_fn), run, steps, TinyProblems())
    return policy


def _loop(policy: Any, loss: Any, run: Run, steps: int, problems: TinyProblems) -> None:
    from nemo_rl.data.collate_fn import rl_collate_fn
    from torchdata.stateful_dataloader import StatefulDataLoader

    grpo = importlib.import_module("nemo_rl.algorithms.grpo")
    recipe.set_at(run.native, "grpo.max_num_steps", steps)
    torch.manual_seed(5)
    loader = StatefulDataLoader(
        problems, batch_size=run.settings.prompts_per_step, shuffle=False, collate_fn=rl_collate_fn, drop_last=True,
        num_workers=0,
    )  # fmt: skip
    logger = MagicMock()
    generation = TinyGeneration(policy.model, upstream.native("BatchedDataDict"), policy.events)
    with (
        patch.object(grpo, "refit_policy_generation"),
        patch.object(grpo, "maybe_gpu_profile_step"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        grpo.grpo_train(
            policy, generation, loader, None, TinyTokenizer(), loss, {"t": make_environment()}, None, logger,
            MagicMock(), fresh_state(grpo), run.native,
        )  # fmt: skip
    calls = [call for call in logger.log_metrics.call_args_list if call.kwargs.get("prefix") == "train"]
    policy.metrics = [call.args[0] for call in calls if "loss" in call.args[0]]


def fresh_state(grpo: Any) -> Any:
    """The state of a loop that begins: a mapping in NeMo-RL 0.7, a dataclass since."""
    named = getattr(grpo, "_initial_grpo_save_state", None)
    return named() if named is not None else grpo._default_grpo_save_state()
