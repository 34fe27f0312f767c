"""NeMo-RL's SingleController around the tiny world.

Its actor, sampler, buffer, rollouts and data plane are the real ones; model, generation and the one worker are ours,
and stand inside the actor.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch
from nemo_rl.algorithms.async_utils.replay_buffer import TQReplayBuffer
from nemo_rl.algorithms.async_utils.staleness_sampler import InOrderSamplerConfig
from nemo_rl.algorithms.grpo import GRPOConfig, _initial_grpo_save_state
from nemo_rl.algorithms.loss import ClippedPGLossConfig
from nemo_rl.algorithms.single_controller_utils.config import AsyncRLConfig, MasterConfig
from nemo_rl.algorithms.single_controller_utils.setup import SingleControllerActorArgs
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.data_plane.worker_mixin import TQWorkerMixin
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.named_sharding import NamedSharding
from nemo_rl.experience.rollout_manager import RolloutManager
from nemo_rl.models.policy.tq_policy import TQPolicy
from torchdata.stateful_dataloader import StatefulDataLoader

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.nemo.estimator import UecrEstimator, equal_rows
from nemo_uecr.nemo.launcher import training_loss
from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN
from nemo_uecr.nemo.score_checks import score
from nemo_uecr.nemo.step import StepContext, StepScores
from nemo_uecr.steps.scores import PolicyScores, TeacherScores
from tests.nemo.inside.tiny_world import (
    TinyGeneration,
    TinyModel,
    TinyProblems,
    TinyTeacher,
    TinyTokenizer,
    make_environment,
    training_logp,
)

PARTITION = "rollout_data"


class Estimator:
    """Ours, on the groups that the actor selected; SingleController names no problem, so equal prompts are one."""

    def __init__(self, context: StepContext, chunks: list[Any]) -> None:
        self.context, self.chunks = context, chunks

    def compute_advantage(self, *, prompt_ids: Any, rewards: Any, repeated_batch: Any, **columns: Any) -> Any:
        given = {
            "prompt_ids": prompt_ids, "rewards": rewards, "logprobs_reference": None,
            "repeated_batch": {"idx": equal_rows(prompt_ids), "truncated": torch.zeros(len(rewards))},
        }  # fmt: skip
        found = UecrEstimator(self.context).compute_advantage(**(given | columns))
        self.chunks.append((self.context.outcome.record.scored, found))
        return found


class Worker(TQWorkerMixin):
    """One rank: scores by our contract, accumulates gradients, and steps when it is told to."""

    def __init__(self, model: TinyModel, context: StepContext, client: Any) -> None:
        self.model, self.context, self._dp_client = model, context, client
        self.optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        self.tokenizer, self.cfg = TinyTokenizer(), {}

    def _local_coords(self) -> dict[str, int]:
        return dict.fromkeys(("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel"), 0)

    def get_logprobs(self, data: Any, micro_batch_size: Any = None) -> Any:
        context = self.context
        teacher = score(
            TinyTeacher(TinyModel(9), []), data, context.teacher_request(self.model.vocabulary), name="teacher"
        )
        student = score(TinyTeacher(self.model, []), data, context.student_request, name="student")
        context.scores = StepScores(
            PolicyScores(student["rollout_logp"], student["logp"], student["entropy"]),
            TeacherScores(teacher["logp"], teacher.get("entropy")),
            data["token_mask"], data["sample_mask"], data["input_ids"],
        )  # fmt: skip
        return BatchedDataDict(logprobs=student["rollout_logp"])

    def begin_train_step(self, loss_fn: Any, gbs: int, mbs: int) -> None:
        self.loss, self.total, self.tokens = loss_fn, 0.0, 0.0
        self.optimizer.zero_grad()

    def train_microbatch(self, data: Any) -> None:
        """There is one optimizer step a batch, and each of its rows is in the first."""
        columns, one = dict(data) | {FIRST_STEP_COLUMN: torch.ones_like(data["sample_mask"])}, torch.tensor(1.0)
        loss, _ = self.loss(training_logp(self.model, data["input_ids"]), columns, one, one)
        loss.backward()
        self.total += float(loss.detach())
        self.tokens += float((data["token_mask"][:, 1:] * data["sample_mask"][:, None]).sum())

    def finish_train_step(self) -> dict[str, Any]:
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad /= self.tokens
        self.optimizer.step()
        loss = torch.tensor([self.total / self.tokens])
        return {"global_loss": loss, "grad_norm": torch.ones(1), "all_mb_metrics": {"global_valid_toks": [self.tokens]}}

    def abort_train_step(self) -> None: ...


class Workers:
    """The worker group of one worker, in this process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def run_all_workers_sharded_data(self, method: str, *, meta: Any, common_kwargs: Any = None, **axes: Any) -> Any:
        return [getattr(self.worker, method)(meta=meta[0], **(common_kwargs or {}))]

    def get_all_worker_results(self, found: Any) -> Any:
        return found

    def run_all_workers_single_data(self, method: str, **arguments: Any) -> Any:
        return [ray.put(getattr(self.worker, method)(**arguments))]


class Trainer(TQPolicy):
    """NeMo-RL's own dispatch over that worker; after each step the record of it is written."""

    def __init__(self, worker: Worker, client: Any, chunks: list[Any], record: str) -> None:
        names = ["pipeline_parallel", "data_parallel", "context_parallel", "tensor_parallel"]
        self.sharding_annotations = NamedSharding(layout=np.zeros((1, 1, 1, 1), dtype=int), names=names)
        self.worker_group, self.dp_client, self.tq_partition_id = Workers(worker), client, PARTITION
        self.cfg = {"train_global_batch_size": worker.context.responses, "train_micro_batch_size": 1}
        self._router_replay_enabled, self.flops_tracker = False, None
        self.chunks, self.record, self.steps = chunks, record, []

    def __del__(self) -> None: ...

    def prepare_for_lp_inference(self, keep_train_buffers: bool = False) -> None: ...

    def prepare_for_training(self, *args: Any, **given: Any) -> None: ...

    def shutdown(self) -> bool:
        return True

    def finish_train_step(self) -> Any:
        made = super().finish_train_step()
        self.steps.append((list(self.chunks), float(made["loss"])))
        self.chunks.clear()
        torch.save(self.steps, self.record)
        return made


class Generation(TinyGeneration):
    """Samples one response at a time, as an asynchronous engine hands them out; refitted between steps."""

    def __init__(self, trained: TinyModel) -> None:
        super().__init__(copy.deepcopy(trained), BatchedDataDict, [])
        self.trained = trained

    async def generate_async(self, data: Any, greedy: bool = False) -> Any:
        yield 0, self.generate(data)

    def sync_weights(self, kv_scales: Any = None) -> None:
        self.model.load_state_dict(self.trained.state_dict())

    def shutdown(self) -> None: ...


def actor_arguments(run: NemoConfig, client: Any, *, steps: int, folder: str) -> tuple[Any, SingleControllerActorArgs]:
    """Configuration and arguments of NeMo-RL's actor, on policy, trained as soon as one group is there."""
    torch.manual_seed(5)
    prompts, group = run.rollout.prompts_per_step, run.rollout.responses_per_prompt
    model, chunks = TinyModel(0), list[Any]()
    context = StepContext(run, completed_steps=0, tokenizer=TinyTokenizer())
    generation, environments = Generation(model), {"t": make_environment()}
    buffer = TQReplayBuffer(client, partition_id=PARTITION, pad_value_dict={"token_ids": 0, "input_ids": 0})
    off = {f"{name}_enabled": False for name in ("wandb", "swanlab", "tensorboard", "mlflow")}
    config = MasterConfig.model_construct(
        policy={"train_global_batch_size": prompts * group, "generation": {"colocated": {"enabled": False}}},
        grpo=GRPOConfig(
            num_prompts_per_step=prompts, num_generations_per_prompt=group, max_num_steps=steps,
            skip_reference_policy_logprobs_calculation=True,
        ),
        loss_fn=ClippedPGLossConfig(force_on_policy_ratio=False, reference_policy_kl_penalty=0.0),
        async_rl=AsyncRLConfig(
            sampler=InOrderSamplerConfig(max_lookahead_versions=0), min_groups_for_streaming_train=1,
            max_inflight_prompts=prompts, max_buffered_rollouts=prompts,
        ),
        logger={"log_dir": folder, "monitor_gpus": False, **off}, env={},
        checkpointing={
            "enabled": False, "checkpoint_dir": folder, "metric_name": None, "higher_is_better": True,
            "keep_top_k": None, "save_period": 100, "save_optimizer": False, "checkpoint_must_save_by": None,
        },
    )  # fmt: skip
    return config, SingleControllerActorArgs(
        gen_handle=generation,
        trainer_handle=Trainer(Worker(model, context, client), client, chunks, f"{folder}/steps"),
        env_handles=environments, train_cluster=None, inference_cluster=None, dp_client=client,
        dataloader=StatefulDataLoader(
            TinyProblems(), batch_size=prompts, shuffle=False, collate_fn=rl_collate_fn, drop_last=True, num_workers=0
        ),
        weight_synchronizer=SimpleNamespace(sync_weights=generation.sync_weights, shutdown=generation.shutdown),
        advantage_estimator=Estimator(context, chunks), loss_fn=training_loss(run),
        rollout_manager=RolloutManager(
            tokenizer=TinyTokenizer(), task_to_env=environments, num_generations_per_prompt=group, max_seq_len=64,
            max_rollout_turns=1, policy_generation=generation, use_nemo_gym=False, tq_buffer=buffer,
        ),
        tq_buffer=buffer, partition_id=PARTITION, save_state=_initial_grpo_save_state(), last_checkpoint_path=None,
    )  # fmt: skip
