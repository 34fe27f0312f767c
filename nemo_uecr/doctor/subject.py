"""What the checks ask about a configuration, the same for both back ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nemo_uecr.config.methods import needs_of

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import NemoConfig
    from nemo_uecr.config.schema import Config

__all__ = ["Subject", "read_subject"]


@dataclass(frozen=True)
class Subject:
    """A validated configuration as the checks see it."""

    backend: Literal["local", "nemo_rl"]
    student: str
    """Model folder or hub name."""

    teacher: str | None
    """None where the method reads none."""

    vocabulary: int | None
    """Output columns that the configuration states; None where it states none."""

    run_folder: str
    train_file: str
    question_key: str
    answer_key: str
    enable_thinking: bool
    longest: int
    """Tokens of the longest prompt with the longest response, as the keys allow them."""

    response: int
    """Tokens of the longest response in training."""

    evaluation: int
    """The same in evaluations during a local run; 0 where there are none."""

    nodes: int
    gpus_per_node: int
    """0 where no GPU is asked for."""

    rollout_tensor: int
    megatron_checkpoints: tuple[tuple[str, str], ...]
    """Key and folder of each Megatron checkpoint that is named."""

    kept_checkpoints: int
    """Checkpoints on disk at once, the one being written included."""

    local: Config | None
    nemo: NemoConfig | None


def read_subject(path: str, overrides: Sequence[str]) -> Subject:
    """Load and validate a configuration of either back end.

    Raises:
        ConfigError: it cannot be used at all.
    """
    from nemo_uecr.config.load import backend_of, load_config, load_nemo_config

    if backend_of(path, overrides) == "nemo_rl":
        return _of_nemo(load_nemo_config(path, overrides))
    return _of_local(load_config(path, overrides).config)


def _of_local(config: Config) -> Subject:
    return Subject(
        backend="local",
        student=config.student.model_name,
        teacher=config.teacher.model_name if needs_of(config.method.name).needs_teacher else None,
        vocabulary=None,
        run_folder=config.run.folder,
        train_file=config.data.train,
        question_key=config.data.question_key,
        answer_key=config.data.answer_key,
        enable_thinking=config.data.enable_thinking,
        longest=config.data.max_prompt_tokens + config.rollout.max_response_tokens,
        response=config.rollout.max_response_tokens,
        evaluation=config.evaluation.max_tokens if config.evaluation.benchmarks else 0,
        nodes=1,
        gpus_per_node=1 if config.device == "cuda" else 0,
        rollout_tensor=1,
        megatron_checkpoints=(),
        kept_checkpoints=config.checkpoint.keep_last + (2 if config.checkpoint.keep_best else 1),
        local=config,
        nemo=None,
    )


def _of_nemo(config: NemoConfig) -> Subject:
    teacher = needs_of(config.method.name).needs_teacher
    named = [("student.megatron_checkpoint", config.student.megatron_checkpoint)]
    if teacher:
        named.append(("teacher.megatron_checkpoint", config.teacher.megatron_checkpoint))
    return Subject(
        backend="nemo_rl",
        student=config.student.model_name,
        teacher=config.teacher.model_name if teacher else None,
        vocabulary=config.student.vocabulary,
        run_folder=config.run.folder,
        train_file=config.data.train,
        question_key=config.data.question_key,
        answer_key=config.data.answer_key,
        enable_thinking=config.data.enable_thinking,
        longest=config.data.max_prompt_tokens + config.rollout.max_response_tokens,
        response=config.rollout.max_response_tokens,
        evaluation=0,
        nodes=config.cluster.nodes,
        gpus_per_node=config.cluster.gpus_per_node,
        rollout_tensor=config.rollout.tensor,
        megatron_checkpoints=tuple((key, folder) for key, folder in named if folder is not None),
        kept_checkpoints=config.checkpoint.keep_last + 1,
        local=None,
        nemo=config,
    )
