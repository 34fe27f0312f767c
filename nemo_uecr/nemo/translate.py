"""Our configuration as NeMo-RL's.

`native.yaml` holds what is the same in every run, this module what follows from ours, by NeMo-RL's dotted keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nemo_uecr.config.load import changed
from nemo_uecr.config.nemo_schema import NemoConfig, NemoRlEnvironment, ParallelConfig
from nemo_uecr.config.schema import longest_generated
from nemo_uecr.errors import ConfigError
from nemo_uecr.nemo import upstream

#: What NeMo-RL finds by dotted name, and the name by which a data set asks for our environment.
DATASET_FQN = "nemo_uecr.nemo.task.ProblemsDataset"
ENVIRONMENT_FQN = "nemo_uecr.nemo.task.RewardEnvironment"
ENVIRONMENT = "nemo_uecr"


def native_config(config: NemoConfig, version: str, *, dropped: Sequence[int] = ()) -> Any:
    """NeMo-RL's configuration of a run, validated by its own schema."""
    from pydantic import ValidationError

    try:
        return upstream.native("MasterConfig")(**master_config(config, dropped=dropped))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"NeMo-RL {version} refuses {where}: {first['msg']} (got {first['input']!r})") from error


def master_config(config: NemoConfig, *, dropped: Sequence[int] = ()) -> dict[str, Any]:
    """NeMo-RL's whole configuration of a run, without the problems at the ``dropped`` places."""
    native = yaml.safe_load(Path(__file__).with_name("native.yaml").read_text(encoding="utf-8"))
    policy = {f"policy.{name}": value for name, value in _policy(config).items()}
    return changed(native, {**_loop(config), **policy, **_data(config, dropped), **_outputs(config)})


def teacher_policy(config: NemoConfig, student: Mapping[str, Any], columns: int) -> dict[str, Any]:
    """The student's policy section, as NeMo-RL completed it, made a teacher's with so many output columns."""
    teacher = config.teacher
    own = student.keys() - {"pretrained_checkpoint", "quant_cfg", "router_replay"}
    values = {
        "model_name": teacher.model_name,
        "tokenizer.name": teacher.model_name,
        **_parallel(teacher.parallel),
        "megatron_cfg.activation_checkpointing": False,
        "megatron_cfg.fp8_cfg.enabled": teacher.fp8,
        # Transformer Engine keeps an FP8 copy of each weight, which moving the model does not reach.
        "megatron_cfg.fp8_cfg.force_clear_fp8_caches": teacher.fp8,
        # Whatever the student samples at, the teacher is the raw model.
        **{f"generation.{name}": value for name, value in {"temperature": 1.0, "top_p": 1.0, "top_k": None}.items()},
        "uecr.temperature": 1.0,
        "uecr.filters": "paper",
        "uecr.vocabulary": columns,
        **_start("pretrained_checkpoint", teacher.megatron_checkpoint),
    }
    return changed({name: student[name] for name in own}, values)


def teacher_gpus_of_nodes(config: NemoConfig) -> list[int]:
    """A dedicated teacher's GPUs on each of its nodes: some of the only node, or whole ones."""
    own, per_node = config.teacher.dedicated_gpus, config.cluster.gpus_per_node
    return [own] if config.cluster.nodes == 1 else [per_node] * (own // per_node)


def _loop(config: NemoConfig) -> dict[str, Any]:
    """The training loop, its loss, and the student's GPUs: all of them, or those that a dedicated teacher leaves."""
    rollout = config.rollout
    gpus, per_node, one_node = config.student_gpus, config.cluster.gpus_per_node, config.cluster.nodes == 1
    return {
        "grpo.num_prompts_per_step": rollout.prompts_per_step,
        "grpo.num_generations_per_prompt": rollout.responses_per_prompt,
        "grpo.max_num_epochs": config.train.steps,
        "grpo.max_num_steps": config.train.steps,
        "grpo.overlong_filtering": rollout.overlong_filter,
        "grpo.seed": config.run.seed,
        "grpo.skip_reference_policy_logprobs_calculation": config.loss.reference_kl == 0,
        **{f"loss_fn.{name}": value for name, value in loss_settings(config).items()},
        "cluster.num_nodes": 1 if one_node else gpus // per_node,
        "cluster.gpus_per_node": gpus if one_node else per_node,
    }


def loss_settings(config: NemoConfig) -> dict[str, float]:
    """Our loss settings as NeMo-RL's own clipped loss names them."""
    loss = config.loss
    return {
        "reference_policy_kl_penalty": loss.reference_kl,
        "ratio_clip_min": loss.clip_low,
        "ratio_clip_max": loss.clip_high,
    }


def _policy(config: NemoConfig) -> dict[str, Any]:
    """The student's policy section: model, batches, Megatron's optimizer and schedule, and generation."""
    student, train, scoring, rollout = config.student, config.train, config.scoring, config.rollout
    sampling = {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k or None}
    return {
        "model_name": student.model_name,
        "tokenizer.name": student.model_name,
        "tokenizer.chat_template_kwargs": {"enable_thinking": config.data.enable_thinking},
        "train_global_batch_size": train.minibatch_responses,
        "max_total_sequence_length": config.longest,
        "logprob_chunk_size": scoring.chunk_tokens,
        "sequence_packing.train_mb_tokens": train.tokens_per_microbatch,
        "sequence_packing.logprob_mb_tokens": scoring.tokens_per_microbatch,
        "make_sequence_length_divisible_by": config.sequence_multiple,
        "max_grad_norm": train.max_grad_norm,
        **_parallel(student.parallel),
        "megatron_cfg.activation_checkpointing": student.activation_checkpointing,
        "megatron_cfg.optimizer.lr": train.learning_rate,
        "megatron_cfg.optimizer.min_lr": train.learning_rate,
        "megatron_cfg.optimizer.weight_decay": train.weight_decay,
        "megatron_cfg.optimizer.adam_beta1": train.betas[0],
        "megatron_cfg.optimizer.adam_beta2": train.betas[1],
        "megatron_cfg.optimizer.clip_grad": train.max_grad_norm,
        "megatron_cfg.scheduler.start_weight_decay": train.weight_decay,
        "megatron_cfg.scheduler.end_weight_decay": train.weight_decay,
        "megatron_cfg.scheduler.lr_decay_iters": max(train.steps, train.warmup_steps + 1),
        "megatron_cfg.scheduler.lr_warmup_iters": train.warmup_steps,
        "megatron_cfg.scheduler.lr_warmup_init": 0.0 if train.warmup_steps else train.learning_rate,
        "generation.max_new_tokens": rollout.max_response_tokens,
        # Newer than 0.7, and required: NeMo-RL's own validation, which ours replaces, samples as training does.
        **{f"generation.{prefix}{name}": value for prefix in ("", "val_") for name, value in sampling.items()},
        "generation.stop_strings": list(rollout.stop) or None,
        # vLLM finds strings in text; NeMo-RL leaves its tokenizer out where the rollout has none to find.
        **({"generation.vllm_cfg.skip_tokenizer_init": False} if config.evaluation.stop else {}),
        "generation.vllm_cfg.tensor_parallel_size": rollout.tensor,
        "generation.vllm_cfg.gpu_memory_utilization": rollout.gpu_memory,
        "generation.vllm_cfg.max_model_len": longest_generated(config),
        "generation.vllm_cfg.enforce_eager": rollout.enforce_eager,
        "uecr.temperature": rollout.temperature,
        "uecr.filters": config.conventions.filters,
        "uecr.vocabulary": student.vocabulary,
    }


def _parallel(parallel: ParallelConfig) -> dict[str, Any]:
    return {
        "megatron_cfg.tensor_model_parallel_size": parallel.tensor,
        "megatron_cfg.pipeline_model_parallel_size": parallel.pipeline,
        "megatron_cfg.context_parallel_size": parallel.context,
        "megatron_cfg.sequence_parallel": parallel.sequence,
    }


def _data(config: NemoConfig, dropped: Sequence[int]) -> dict[str, Any]:
    """Problems and rewards; the prompts leave `task.ProblemsDataset` as they are."""
    first = config.reward[0]
    if isinstance(first, NemoRlEnvironment):
        environment, settings = first.nemo_rl_environment, first.model_dump(exclude={"nemo_rl_environment"})
    else:
        environment, settings = ENVIRONMENT, {
            "num_workers": config.data.verifier_workers, "reward": [each.model_dump() for each in config.reward],
            "correct_at": config.correct_at, "dataset": config.data.train,
        }  # fmt: skip
    return {
        "data.max_input_seq_length": config.data.max_prompt_tokens + 1,
        "data.shuffle": config.data.shuffle,
        "data.train.dataset_name": DATASET_FQN,
        "data.train.problems": config.data.model_dump(),
        "data.train.dropped": list(dropped),
        "data.train.seed": config.run.seed,
        "data.train.processor": upstream.PROCESSOR,
        "data.train.env_name": environment,
        f"env.{environment}": settings,
    }


def _outputs(config: NemoConfig) -> dict[str, Any]:
    telemetry, folder, checkpoint = config.telemetry, config.run.folder, config.checkpoint
    return {
        "logger.log_dir": f"{folder}/logs",
        "logger.wandb_enabled": telemetry.wandb is not None,
        "logger.tensorboard_enabled": telemetry.tensorboard,
        "logger.mlflow_enabled": telemetry.mlflow is not None,
        "logger.swanlab_enabled": telemetry.swanlab is not None,
        "logger.wandb": {"project": telemetry.wandb or "", "name": folder},
        "logger.swanlab": {"project": telemetry.swanlab or "", "name": folder},
        "logger.mlflow": {"experiment_name": telemetry.mlflow or "", "run_name": folder},
        "checkpointing.enabled": checkpoint.every > 0,
        "checkpointing.checkpoint_dir": f"{folder}/checkpoints",
        "checkpointing.keep_top_k": checkpoint.keep_last,
        "checkpointing.save_period": max(1, checkpoint.every),
        **_start("checkpointing.pretrained_checkpoint", config.student.megatron_checkpoint),
    }


def _start(key: str, checkpoint: str | None) -> dict[str, Any]:
    return {} if checkpoint is None else {key: {"path": checkpoint, "format": "megatron_bridge"}}
