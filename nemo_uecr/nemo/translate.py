"""Our configuration as NeMo-RL's: `native.yaml`, and by NeMo-RL's dotted keys what is computed from ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from nemo_uecr.config.load import changed
from nemo_uecr.config.nemo_schema import NemoConfig, NemoRlEnvironment
from nemo_uecr.config.schema import longest_generated
from nemo_uecr.errors import ConfigError
from nemo_uecr.nemo import upstream

#: Our environment: the name by which a data set asks for it, and where NeMo-RL finds it.
ENVIRONMENT = "nemo_uecr"
ENVIRONMENT_FQN = "nemo_uecr.nemo.task.RewardEnvironment"


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
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!config", lambda _, node: attrgetter(node.value)(config))
    text = Path(__file__).with_name("native.yaml").read_text(encoding="utf-8")
    native = yaml.load(text, loader)  # noqa: S506 - it is a safe one
    return changed(native, _student(config) | _data(config, dropped) | _outputs(config))


def teacher_policy(config: NemoConfig, student: Mapping[str, Any], columns: int) -> dict[str, Any]:
    """The student's policy section, as NeMo-RL completed it, made a teacher's with so many output columns."""
    teacher = config.teacher
    own = student.keys() - {"pretrained_checkpoint", "quant_cfg", "router_replay"}
    values = {
        "model_name": teacher.model_name,
        "tokenizer.name": teacher.model_name,
        "megatron_cfg.tensor_model_parallel_size": teacher.parallel.tensor,
        "megatron_cfg.pipeline_model_parallel_size": teacher.parallel.pipeline,
        "megatron_cfg.context_parallel_size": teacher.parallel.context,
        "megatron_cfg.sequence_parallel": teacher.parallel.sequence,
        "megatron_cfg.activation_checkpointing": False,
        "megatron_cfg.fp8_cfg.enabled": teacher.fp8,
        # Transformer Engine keeps an FP8 copy of each weight, which moving the model does not reach.
        "megatron_cfg.fp8_cfg.force_clear_fp8_caches": teacher.fp8,
        # Whatever the student samples at, the teacher is the raw model.
        "generation.temperature": 1.0,
        "generation.top_p": 1.0,
        "generation.top_k": None,
        "uecr": {"temperature": 1.0, "filters": "paper", "vocabulary": columns},
        **_start("pretrained_checkpoint", teacher.megatron_checkpoint),
    }
    return changed({name: student[name] for name in own}, values)


def teacher_gpus_of_nodes(config: NemoConfig) -> list[int]:
    """A dedicated teacher's GPUs on each of its nodes: some of the only node, or whole ones."""
    own, per_node = config.teacher.dedicated_gpus, config.cluster.gpus_per_node
    return [own] if config.cluster.nodes == 1 else [per_node] * (own // per_node)


def _student(config: NemoConfig) -> dict[str, Any]:
    """The student's optimizer, schedule, generation and GPUs: all of them, or those that a dedicated teacher leaves."""
    train, rollout = config.train, config.rollout
    gpus, per_node, one_node = config.student_gpus, config.cluster.gpus_per_node, config.cluster.nodes == 1
    return {
        "cluster.num_nodes": 1 if one_node else gpus // per_node,
        "cluster.gpus_per_node": gpus if one_node else per_node,
        "grpo.skip_reference_policy_logprobs_calculation": config.loss.reference_kl == 0,
        "policy.megatron_cfg.optimizer.adam_beta1": train.betas[0],
        "policy.megatron_cfg.optimizer.adam_beta2": train.betas[1],
        "policy.megatron_cfg.scheduler.lr_decay_iters": max(train.steps, train.warmup_steps + 1),
        "policy.megatron_cfg.scheduler.lr_warmup_init": 0.0 if train.warmup_steps else train.learning_rate,
        "policy.generation.top_k": rollout.top_k or None,
        "policy.generation.val_top_k": rollout.top_k or None,
        "policy.generation.stop_strings": list(rollout.stop) or None,
        # vLLM finds strings in text; NeMo-RL leaves its tokenizer out where the rollout has none to find.
        **({"policy.generation.vllm_cfg.skip_tokenizer_init": False} if config.evaluation.stop else {}),
        "policy.generation.vllm_cfg.max_model_len": longest_generated(config),
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
        "data.train.problems": config.data.model_dump(),
        "data.train.dropped": list(dropped),
        "data.train.env_name": environment,
        f"env.{environment}": settings,
    }


def _outputs(config: NemoConfig) -> dict[str, Any]:
    telemetry, folder, checkpoint = config.telemetry, config.run.folder, config.checkpoint
    return {
        "logger.log_dir": f"{folder}/logs",
        "logger.wandb_enabled": telemetry.wandb is not None,
        "logger.mlflow_enabled": telemetry.mlflow is not None,
        "logger.swanlab_enabled": telemetry.swanlab is not None,
        "logger.wandb": {"project": telemetry.wandb or "", "name": folder},
        "logger.swanlab": {"project": telemetry.swanlab or "", "name": folder},
        "logger.mlflow": {"experiment_name": telemetry.mlflow or "", "run_name": folder},
        "checkpointing.enabled": checkpoint.every > 0,
        "checkpointing.checkpoint_dir": f"{folder}/checkpoints",
        "checkpointing.save_period": max(1, checkpoint.every),
        **_start("checkpointing.pretrained_checkpoint", config.student.megatron_checkpoint),
    }


def _start(key: str, checkpoint: str | None) -> dict[str, Any]:
    return {} if checkpoint is None else {key: {"path": checkpoint, "format": "megatron_bridge"}}
