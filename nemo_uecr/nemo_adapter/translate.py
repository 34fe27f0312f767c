"""Our configuration to NeMo-RL's: every key that its loop, its policy and its generator read, stated here."""

from __future__ import annotations

from typing import Any

from nemo_uecr.config.nemo_checks import student_gpus
from nemo_uecr.config.nemo_schema import NemoConfig, ParallelConfig
from nemo_uecr.nemo_adapter import upstream
from nemo_uecr.nemo_adapter.verifier_environment import ENVIRONMENT

DATASET_FQN = "nemo_uecr.nemo_adapter.problems_dataset.ProblemsDataset"


def master_config(config: NemoConfig, *, prompt_file: str) -> dict[str, Any]:
    """NeMo-RL's whole configuration of a run.

    Args:
        config: ours, validated.
        prompt_file: file with the prompt template in NeMo-RL's form, a ``{}`` for the question.
    """
    return {
        "grpo": _loop(config),
        "loss_fn": _loss(config),
        "policy": policy(config),
        "data": _data(config, prompt_file),
        "env": {ENVIRONMENT: {"num_workers": config.data.verifier_workers}},
        "logger": _logger(config),
        "checkpointing": _checkpointing(config),
        "cluster": _cluster(config),
        "data_plane": None,
        "on_policy_distillation": None,
    }


def longest(config: NemoConfig) -> int:
    """Tokens of the longest prompt with the longest response."""
    return config.data.max_prompt_tokens + config.rollout.max_response_tokens


def _longest_evaluated(config: NemoConfig) -> int:
    return config.data.max_prompt_tokens + config.evaluation.max_tokens if config.evaluation.benchmarks else 0


def sequence_multiple(config: NemoConfig) -> int:
    """What every sequence is padded to, so that student and teacher can both cut it."""
    import math

    def needs(parallel: ParallelConfig) -> int:
        context = 2 * parallel.context if parallel.context > 1 else 1
        return context * (parallel.tensor if parallel.sequence else 1)

    return math.lcm(needs(config.student.parallel), needs(config.teacher.parallel))


def policy(config: NemoConfig) -> dict[str, Any]:
    """The student's policy section; the teacher's is derived from it."""
    train, scoring = config.train, config.scoring
    return {
        "model_name": config.student.model_name,
        "tokenizer": {
            "name": config.student.model_name,
            "chat_template_kwargs": {"enable_thinking": config.data.enable_thinking},
        },
        "hf_config_overrides": {},
        "train_global_batch_size": train.minibatch_responses,
        "train_micro_batch_size": 1,
        "generation_batch_size": 1,
        "logprob_batch_size": 1,
        "max_total_sequence_length": longest(config),
        "precision": "bfloat16",
        "logprob_chunk_size": scoring.chunk_tokens,
        "offload_optimizer_for_logprob": False,
        "dtensor_cfg": {"enabled": False},
        "megatron_cfg": _megatron(config, config.student.parallel),
        "draft": {"enabled": False},
        "dynamic_batching": {"enabled": False},
        "sequence_packing": {
            "enabled": True,
            "train_mb_tokens": train.tokens_per_microbatch,
            "logprob_mb_tokens": scoring.tokens_per_microbatch,
            "algorithm": "modified_first_fit_decreasing",
            "sequence_length_round": 64,
        },
        "make_sequence_length_divisible_by": sequence_multiple(config),
        "max_grad_norm": train.max_grad_norm,
        "optimizer": None,
        "scheduler": None,
        "generation": _generation(config),
        "uecr": {
            "temperature": config.rollout.temperature,
            "filters": config.conventions.filters,
            "vocabulary": config.student.vocabulary,
        },
    }


def _megatron(config: NemoConfig, parallel: ParallelConfig) -> dict[str, Any]:
    checkpointing = config.student.activation_checkpointing
    return {
        "enabled": True,
        "force_reconvert_from_hf": False,
        "empty_unused_memory_level": 1,
        "activation_checkpointing": checkpointing,
        "recompute_granularity": "full",
        "recompute_modules": None,
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
        "context_parallel_size": parallel.context,
        "sequence_parallel": parallel.sequence,
        "expert_tensor_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None,
        "pipeline_dtype": "bfloat16",
        # 16-bit logits until they are reduced in chunks; the temperature divides them in that dtype at both ends.
        "defer_fp32_logits": True,
        "use_linear_ce_fusion_loss": False,
        "freeze_moe_router": True,
        "moe_router_dtype": "fp64",
        "moe_router_load_balancing_type": "none",
        "moe_router_bias_update_rate": 0.0,
        "moe_permute_fusion": True,
        "moe_enable_deepep": False,
        "moe_token_dispatcher_type": "alltoall",
        "moe_shared_expert_overlap": False,
        "moe_per_layer_logging": False,
        "mtp_num_layers": 0,
        "mtp_loss_scaling_factor": 0.0,
        "mtp_use_repeated_layer": False,
        "mtp_detach_heads": False,
        "apply_rope_fusion": True,
        "bias_activation_fusion": True,
        "gradient_accumulation_fusion": False,
        "use_fused_weighted_squared_relu": False,
        "peft": {"enabled": False},
        "fp8_cfg": {"enabled": False, "fp8": "e4m3", "fp8_recipe": "blockwise", "fp8_param": False},
        "env_vars": None,
        "optimizer": _optimizer(config),
        "scheduler": _scheduler(config),
        "distributed_data_parallel_config": {
            "grad_reduce_in_fp32": True,
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
            "use_custom_fsdp": False,
            "data_parallel_sharding_strategy": "optim_grads_params",
        },
    }


def _optimizer(config: NemoConfig) -> dict[str, Any]:
    train = config.train
    return {
        "optimizer": "adam",
        "lr": train.learning_rate,
        "min_lr": train.learning_rate,
        "weight_decay": train.weight_decay,
        "bf16": True,
        "fp16": False,
        "params_dtype": "float32",
        "adam_beta1": train.betas[0],
        "adam_beta2": train.betas[1],
        "adam_eps": 1e-8,
        "sgd_momentum": 0.9,
        "use_distributed_optimizer": True,
        "use_precision_aware_optimizer": True,
        "clip_grad": train.max_grad_norm,
        "optimizer_cpu_offload": False,
        "optimizer_offload_fraction": 0.0,
    }


def _scheduler(config: NemoConfig) -> dict[str, Any]:
    train = config.train
    return {
        "start_weight_decay": train.weight_decay,
        "end_weight_decay": train.weight_decay,
        "weight_decay_incr_style": "constant",
        "lr_decay_style": "constant",
        "lr_decay_iters": max(train.steps, train.warmup_steps + 1),
        "lr_warmup_iters": train.warmup_steps,
        "lr_warmup_init": 0.0 if train.warmup_steps else train.learning_rate,
        # A run may be continued to more steps: without this Megatron refuses a checkpoint with another end of decay.
        "override_opt_param_scheduler": True,
    }


def _generation(config: NemoConfig) -> dict[str, Any]:
    rollout = config.rollout
    return {
        "backend": "vllm",
        "max_new_tokens": rollout.max_response_tokens,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k or None,
        "stop_token_ids": None,
        "stop_strings": None,
        "port_range_low": 11001,
        "port_range_high": 15000,
        "vllm_cfg": {
            "async_engine": False,
            "precision": "bfloat16",
            "kv_cache_dtype": "auto",
            "tensor_parallel_size": rollout.tensor,
            "pipeline_parallel_size": 1,
            "expert_parallel_size": 1,
            "gpu_memory_utilization": rollout.gpu_memory,
            "max_model_len": max(longest(config), _longest_evaluated(config)),
            "enforce_eager": rollout.enforce_eager,
            "use_tqdm": False,
            "use_deep_gemm": False,
            "num_last_layers_in_bf16": 0,
            "num_first_layers_in_bf16": 0,
            "enable_vllm_metrics_logger": False,
            "vllm_metrics_logger_interval": 0.5,
        },
        "vllm_kwargs": {},
        "colocated": {"enabled": True, "resources": {"gpus_per_node": None, "num_nodes": None}},
    }


def _loop(config: NemoConfig) -> dict[str, Any]:
    rollout = config.rollout
    return {
        "num_prompts_per_step": rollout.prompts_per_step,
        "num_generations_per_prompt": rollout.responses_per_prompt,
        "max_rollout_turns": 1,
        "max_num_epochs": config.train.steps,
        "max_num_steps": config.train.steps,
        "normalize_rewards": True,
        "use_leave_one_out_baseline": False,
        "val_period": 0,
        "val_at_start": False,
        "val_at_end": False,
        "max_val_samples": 0,
        "val_batch_size": 1,
        "overlong_filtering": rollout.overlong_filter,
        "advantage_clip_low": None,
        "advantage_clip_high": None,
        "seed": config.run.seed,
        "use_dynamic_sampling": False,
        "dynamic_sampling_max_gen_batches": 1,
        "batch_multiplier": 1,
        "reward_shaping": {"enabled": False},
        "reward_scaling": {"enabled": False},
        "adv_estimator": {
            "name": "grpo",
            "normalize_rewards": True,
            "use_leave_one_out_baseline": False,
            "minus_baseline": True,
        },
        "seq_logprob_error_threshold": None,
        "invalid_tool_call_advantage": None,
        "malformed_thinking_advantage": None,
        "skip_reference_policy_logprobs_calculation": config.loss.reference_kl == 0,
        "async_grpo": {"enabled": False, "max_trajectory_age_steps": 1},
    }


def _loss(config: NemoConfig) -> dict[str, Any]:
    loss = config.loss
    return {
        "reference_policy_kl_penalty": loss.reference_kl,
        "reference_policy_kl_type": "k3",
        "ratio_clip_min": loss.clip_low,
        "ratio_clip_max": loss.clip_high,
        "ratio_clip_c": None,
        "use_on_policy_kl_approximation": False,
        "use_importance_sampling_correction": False,
        "truncated_importance_sampling_ratio": None,
        "sequence_level_importance_ratios": False,
        "token_level_loss": True,
        "force_on_policy_ratio": False,
        "use_kl_in_reward": False,
        "disable_ppo_ratio": False,
    }


def _data(config: NemoConfig, prompt_file: str) -> dict[str, Any]:
    data = config.data
    train = {
        "dataset_name": DATASET_FQN,
        "data_path": data.train,
        "question_key": data.question_key,
        "answer_key": data.answer_key,
        "difficulty_key": data.difficulty_key,
        "difficulty_low": data.difficulty_low,
        "difficulty_high": data.difficulty_high,
        "problem_count": data.subset,
        "seed": config.run.seed,
        "prompt_file": prompt_file,
        "system_prompt_file": None,
        "processor": upstream.PROCESSOR,
        "env_name": ENVIRONMENT,
    }
    return {
        "max_input_seq_length": data.max_prompt_tokens + 1,
        "shuffle": data.shuffle,
        "num_workers": 1,
        "use_multiple_dataloader": False,
        "train": train,
        "validation": None,
        "default": None,
    }


def _logger(config: NemoConfig) -> dict[str, Any]:
    telemetry, folder = config.telemetry, config.run.folder
    return {
        "log_dir": f"{folder}/logs",
        "num_val_samples_to_print": 0,
        "wandb_enabled": telemetry.wandb is not None,
        "tensorboard_enabled": telemetry.tensorboard,
        "mlflow_enabled": telemetry.mlflow is not None,
        "swanlab_enabled": False,
        "monitor_gpus": False,
        "wandb": {"project": telemetry.wandb or "", "name": folder},
        "swanlab": {"project": "", "name": folder},
        "tensorboard": {},
        "mlflow": {"experiment_name": telemetry.mlflow or "", "run_name": folder},
        "gpu_monitoring": {"collection_interval": 10, "flush_interval": 10},
    }


def _checkpointing(config: NemoConfig) -> dict[str, Any]:
    checkpoint = config.checkpoint
    section: dict[str, Any] = {
        "enabled": checkpoint.every > 0,
        "checkpoint_dir": f"{config.run.folder}/checkpoints",
        "metric_name": None,
        "higher_is_better": True,
        "keep_top_k": checkpoint.keep_last,
        "save_period": max(1, checkpoint.every),
        "checkpoint_must_save_by": None,
        "model_save_format": None,
        "save_consolidated": False,
        "save_optimizer": True,
    }
    if config.student.megatron_checkpoint is not None:
        section["pretrained_checkpoint"] = {"path": config.student.megatron_checkpoint, "format": "megatron_bridge"}
    return section


def _cluster(config: NemoConfig) -> dict[str, Any]:
    """The student's GPUs: all of them, or those that a dedicated teacher leaves."""
    gpus, per_node = student_gpus(config), config.cluster.gpus_per_node
    one_node = config.cluster.nodes == 1
    return {
        "num_nodes": 1 if one_node else gpus // per_node,
        "gpus_per_node": gpus if one_node else per_node,
        "master_port_range_low": 25000,
        "master_port_range_high": 28000,
        "segment_size": None,
    }


def teacher_gpus_of_nodes(config: NemoConfig) -> list[int]:
    """A dedicated teacher's GPUs on each of its nodes: some of the only node, or whole ones."""
    own, per_node = config.teacher.dedicated_gpus, config.cluster.gpus_per_node
    return [own] if config.cluster.nodes == 1 else [per_node] * (own // per_node)


def scoring_policy_config(config: Any) -> Any:
    """The policy's configuration with what the loop's set-up adds to it; a scorer makes no training step."""
    config.policy["megatron_cfg"]["train_iters"] = 1
    return config.policy
