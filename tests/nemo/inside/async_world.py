"""An engine that answers while the policy trains: NeMo-RL's asynchronous loop over the tiny world, on CPUs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import sys
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock, patch

import torch

from nemo_uecr.nemo import recipe, upstream
from nemo_uecr.nemo.estimator import UecrEstimator
from nemo_uecr.nemo.loss import UecrLoss
from nemo_uecr.nemo.plug_in import Run as PluggedIn
from nemo_uecr.nemo.recipe import PROBLEM
from nemo_uecr.nemo.step import StepContext
from nemo_uecr.stopping import StopRequest
from tests.nemo.inside.loop import OurTinyPolicy, Run, fresh_state, run_of
from tests.nemo.inside.tiny_world import (
    TinyGeneration,
    TinyModel,
    TinyProblems,
    TinyTeacher,
    TinyTokenizer,
    make_environment,
)

ASYNCHRONOUS = [
    "grpo.async_grpo.enabled=true", "++grpo.async_grpo.in_flight_weight_updates=true",
    "policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.gpus_per_node=1",
    "policy.generation.vllm_cfg.async_engine=true", "loss_fn.use_importance_sampling_correction=true",
]  # fmt: skip


def async_run_of(method: str, age: int, *changes: str) -> Run:
    """A recipe whose responses may be ``age`` updates old."""
    return run_of(method, *ASYNCHRONOUS, f"grpo.async_grpo.max_trajectory_age_steps={age}", *changes)


class Numbered(TinyProblems):
    """Each row carries the number of its problem, as our data set's do."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index) | {"extra_env_info": {PROBLEM: index}}


class AnsweringEngine(TinyGeneration):
    """Reads the newest weights before each token, wherever it is: they change under a response."""

    cfg: ClassVar[dict[str, Any]] = {"backend": "vllm", "vllm_cfg": {"async_engine": True}}
    requires_kv_scale_sync = False

    def __init__(self, weights: Any) -> None:
        super().__init__(TinyModel(0), upstream.native("BatchedDataDict"), [])
        self.weights = weights

    async def generate_async(self, data: Any, greedy: bool = False) -> AsyncIterator[tuple[int, Any]]:
        for row in range(data["input_ids"].shape[0]):
            self.model.load_state_dict(await self.weights.get.remote())
            await asyncio.sleep(0.01)
            yield row, self.generate(data.slice(row, row + 1) if len(data["input_ids"]) > 1 else data)

    def shutdown(self) -> bool:
        return True

    def blocks_training(self) -> bool:
        return False


class AsyncTinyPolicy(OurTinyPolicy):
    """What the asynchronous loop asks of a policy besides."""

    sharding_annotations = SimpleNamespace(get_axis_size=lambda axis: 1)


def train_asynchronously(
    run: Run,
    *,
    steps: int,
    teacher: type[TinyTeacher] = TinyTeacher,
    problems: TinyProblems | None = None,
    stop: StopRequest | None = None,
    checkpointer: Any = None,
    first_refit_s: float = 0.0,
) -> Any:
    """Our parts in NeMo-RL's own asynchronous loop, by the way of the plug-in; the policy, with each step's metrics."""
    import ray
    import ray.cloudpickle
    from nemo_rl.data.collate_fn import rl_collate_fn
    from torchdata.stateful_dataloader import StatefulDataLoader

    grpo: Any = importlib.import_module("nemo_rl.algorithms.grpo")
    for module in (__name__, TinyGeneration.__module__):  # in the collector, `tests` is NeMo-RL's own
        ray.cloudpickle.register_pickle_by_value(sys.modules[module])
    registry = upstream.native("ACTOR_ENVIRONMENT_REGISTRY")
    for name in ("ReplayBuffer", "AsyncTrajectoryCollector"):
        registry[f"nemo_rl.algorithms.async_utils.{name}"] = sys.executable
    recipe.set_at(run.native, "grpo.max_num_steps", steps)
    settings = run.settings.__class__(**{**vars(run.settings), "steps": steps})
    plugged = object.__new__(PluggedIn)
    plugged.settings, plugged.stop, plugged.timeouts = settings, stop or StopRequest(), []
    plugged.context = context = StepContext(settings, tokenizer=TinyTokenizer())
    reads = settings.method.needs_teacher()
    policy: Any = AsyncTinyPolicy(
        TinyModel(0), minibatch=settings.minibatch_responses, context=context,
        teachers={"teacher": teacher(TinyModel(9), [])} if reads else {},
    )  # fmt: skip
    if reads:
        policy._teachers["teacher"].events = policy.events

    @ray.remote
    class Weights:
        def __init__(self, values: Any) -> None:
            self.values = values

        def put(self, values: Any) -> None:
            self.values = values

        def get(self) -> Any:
            return self.values

    # An engine has loaded the student's weights before the first of the loop reach it; 0.7 collects from the start.
    weights = Weights.remote(policy.model.state_dict())

    waits = [first_refit_s]

    def refit(policy: Any, *args: Any, **given: Any) -> dict[str, float]:
        time.sleep(waits.pop() if waits else 0.0)
        ray.get(weights.put.remote({name: value.detach().clone() for name, value in policy.model.state_dict().items()}))
        return {}

    torch.manual_seed(5)
    loader = StatefulDataLoader(
        problems or Numbered(), batch_size=settings.prompts_per_step, shuffle=False, collate_fn=rl_collate_fn,
        drop_last=True, num_workers=0,
    )  # fmt: skip
    logger = MagicMock()
    make_environment.cache_clear()  # the loop ends its environments
    with (
        upstream.substitutions(
            estimator=lambda: UecrEstimator(context), more_worker_groups=1, stop=plugged.stop, timeouts=plugged.timeouts
        ),
        patch.object(grpo, "refit_policy_generation", refit),
        patch.object(grpo, "maybe_gpu_profile_step"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        given = {
            "policy": policy, "policy_generation": AnsweringEngine(weights), "dataloader": loader,
            "val_dataloader": None, "tokenizer": TinyTokenizer(),
            "loss_fn": UecrLoss(settings, run.native.loss_fn), "task_to_env": {"t": make_environment()},
            "val_task_to_env": None, "logger": logger,
            "checkpointer": checkpointer or MagicMock(get_latest_checkpoint_path=lambda: None),
            "grpo_save_state": fresh_state(grpo), "master_config": run.native,
            "max_trajectory_age_steps": settings.lag,
        }  # fmt: skip
        try:
            plugged.train_asynchronously(grpo.async_grpo_train, (), given)
        finally:
            make_environment.cache_clear()
    calls = [call for call in logger.log_metrics.call_args_list if call.kwargs.get("prefix") == "train"]
    policy.metrics = [call.args[0] for call in calls if "loss" in call.args[0]]
    policy.context = context
    return policy
