"""Our configuration to NeMo-RL's: every key that its loop reads, stated here; the policy's in `translate_policy`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nemo_uecr.config.nemo_checks import student_gpus
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.translate_policy import policy
from nemo_uecr.nemo.verifier_environment import ENVIRONMENT

DATASET_FQN = "nemo_uecr.nemo.problems_dataset.ProblemsDataset"


def master_config(config: NemoConfig, *, prompt_file: str, dropped: Sequence[int] = ()) -> dict[str, Any]:
    """NeMo-RL's whole configuration of a run.

    Args:
        config: ours, validated.
        prompt_file: file with the prompt template in NeMo-RL's form, a ``{}`` for the question.
        dropped: places of the problems that are left out of the training.
    """
    return {
        "grpo": _loop(config),
        "loss_fn": _loss(config),
        "policy": policy(config),
        "data": _data(config, prompt_file, dropped),
        "env": {ENVIRONMENT: {"num_workers": config.data.verifier_workers}},
        "logger": _logger(config),
        "checkpointing": _checkpointing(config),
        "cluster": _cluster(config),
        "data_plane": None,
        "on_policy_distillation": None,
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


def _data(config: NemoConfig, prompt_file: str, dropped: Sequence[int]) -> dict[str, Any]:
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
        "dropped": list(dropped),
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
