"""The policy section of NeMo-RL's configuration: every key that its policy and its generator read, stated here."""

from __future__ import annotations

from typing import Any

from nemo_uecr.config.nemo_checks import longest, sequence_multiple
from nemo_uecr.config.nemo_schema import NemoConfig, ParallelConfig

DENSE: dict[str, Any] = {
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
}
"""Experts and the prediction of several tokens: a dense model has neither, and the keys must be there all the same."""


def _longest_evaluated(config: NemoConfig) -> int:
    return config.data.max_prompt_tokens + config.evaluation.max_tokens if config.evaluation.benchmarks else 0


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
        **DENSE,
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
    sampling = {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k or None}
    return {
        "backend": "vllm",
        "max_new_tokens": rollout.max_response_tokens,
        **sampling,
        # Newer than 0.7, and required: NeMo-RL's own validation, which ours replaces, samples as training does.
        **{f"val_{name}": value for name, value in sampling.items()},
        "stop_token_ids": None,
        "stop_strings": None,
        "port_range_low": 11001,
        "port_range_high": 15000,
        "vllm_cfg": {
            "async_engine": False,
            # NeMo-RL 0.7 sets this itself. Later it is vLLM's default, which is before the temperature: every metric
            # of the gap between generation and training would be wrong.
            "logprobs_mode": "processed_logprobs",
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


def scoring_policy_config(config: Any) -> Any:
    """The policy's configuration with what the loop's set-up adds to it; a scorer makes no training step."""
    config.policy["megatron_cfg"]["train_iters"] = 1
    return config.policy
