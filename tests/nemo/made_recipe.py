"""A small recipe as NeMo-RL resolves one, with a section `uecr`; tests change it by dotted keys."""

from __future__ import annotations

import copy
from typing import Any

from nemo_uecr.config.load import changed
from nemo_uecr.nemo.recipe import Settings, section_of, view

METHOD = {"name": "uecr", "alpha": 1.0, "rho": 0.5, "tau_delta": 1.0, "tau_entropy": 1.0}

RECIPE: dict[str, Any] = {
    "grpo": {
        "num_prompts_per_step": 4, "num_generations_per_prompt": 8, "max_num_steps": 30, "max_num_epochs": 1, "seed": 7,
        "overlong_filtering": True, "use_leave_one_out_baseline": True, "normalize_rewards": True,
        "adv_estimator": {"name": "grpo"}, "async_grpo": {"enabled": False},
    },
    "loss_fn": {
        "reference_policy_kl_penalty": 0.01, "reference_policy_kl_type": "k3", "ratio_clip_min": 0.2,
        "ratio_clip_max": 0.28, "ratio_clip_c": None, "force_on_policy_ratio": False, "token_level_loss": True,
    },
    "policy": {
        "model_name": "models/student", "hf_config_overrides": {},
        "tokenizer": {"name": "models/student", "chat_template_kwargs": {"enable_thinking": False}},
        "max_total_sequence_length": 512, "make_sequence_length_divisible_by": 1, "precision": "bfloat16",
        "train_global_batch_size": 16, "train_micro_batch_size": 1, "logprob_batch_size": 1,
        "sequence_packing": {"enabled": True, "train_mb_tokens": 512, "logprob_mb_tokens": 512},
        "dynamic_batching": {"enabled": False}, "draft": {"enabled": False},
        "megatron_cfg": {
            "enabled": True, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1,
            "context_parallel_size": 1, "sequence_parallel": False, "expert_model_parallel_size": 1,
            "expert_tensor_parallel_size": 1, "activation_checkpointing": True, "peft": {"enabled": True, "dim": 8},
            "num_layers_in_first_pipeline_stage": 3, "fp8_cfg": {"enabled": True, "fp8": "e4m3"}, "env_vars": None,
            "distributed_data_parallel_config": {"overlap_param_gather": False},
        },
        "generation": {
            "backend": "vllm", "temperature": 1.0, "top_p": 1.0, "top_k": None, "max_new_tokens": 512,
            "colocated": {"enabled": True, "resources": {"gpus_per_node": None, "num_nodes": None}},
            "vllm_cfg": {
                "gpu_memory_utilization": 0.6, "tensor_parallel_size": 1, "pipeline_parallel_size": 1,
                "expert_parallel_size": 1, "max_model_len": 512, "async_engine": False, "kv_cache_dtype": "auto",
            },
        },
    },
    "data": {"train": {"dataset_name": "OpenMathInstruct-2"}, "default": {"processor": "math_hf_data_processor"}},
    "env": {"math": {"num_workers": 8}},
    "checkpointing": {"enabled": True, "checkpoint_dir": "results/grpo"},
    "logger": {"log_dir": "logs"},
    "cluster": {"gpus_per_node": 8, "num_nodes": 1},
    "uecr": {"method": METHOD, "teacher": {"model_name": "models/teacher"}},
}  # fmt: skip


def made(**values: Any) -> dict[str, Any]:
    """The recipe with other values at dotted keys, a dot written as two underscores."""
    given = {key.replace("__", "."): value for key, value in values.items()}
    return changed(copy.deepcopy(RECIPE), copy.deepcopy(given))


def made_settings(vocabulary: int, **values: Any) -> Settings:
    """What the adapter reads of that recipe."""
    given = made(**values)
    return view(given, section_of(given), vocabulary)
