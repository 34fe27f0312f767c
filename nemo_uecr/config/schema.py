"""The configuration of a run of the local back end: every key, its type, its limits and its meaning.

`sections` has what both back ends share, and the rules that hold for every section.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from nemo_uecr.config import cross_checks
from nemo_uecr.config.kinds import (
    Count,
    Device,
    Dtype,
    LearningRate,
    NonNegative,
    NonNegativeInt,
    Pair,
    Positive,
    Progress,
    PromptTemplate,
    Switch,
    Text,
    Threads,
    Tracking,
)
from nemo_uecr.config.sections import (
    EvaluationConfig,
    LossConfig,
    MethodConfig,
    RunConfig,
    SamplingConfig,
    Section,
    TolerancesConfig,
)

__all__ = [
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "RolloutConfig",
    "StudentConfig",
    "TeacherConfig",
    "TelemetryConfig",
    "TrainConfig",
]


class StudentConfig(Section):
    """The policy that is trained."""

    model_name: Text
    """Hugging Face model: a local folder or a hub name."""

    dtype: Dtype
    """Number format of weights and activations."""


class TeacherConfig(Section):
    """The frozen model that scores the student's tokens."""

    model_name: Text | None
    """Hugging Face model: a local folder or a hub name; null where the method reads no teacher."""

    dtype: Dtype
    """Number format of weights and activations."""


class DataConfig(Section):
    """Training problems and how a prompt is made from one."""

    train: Text
    """JSONL file of problems, one object a line."""

    question_key: Text
    """Field of the question."""

    answer_key: Text
    """Field of the reference answer."""

    id_key: Text | None
    """Field of the problem's id; null: the line number."""

    prompt_template: PromptTemplate
    """The user's turn; `{question}` is replaced by the question."""

    system_prompt: Text | None
    """The system turn; null: none."""

    enable_thinking: bool
    """Handed to the chat template; false is the non-thinking mode."""

    max_prompt_tokens: Count
    """Longest prompt in tokens, chat template included."""

    long_prompts: Literal["refuse", "drop"]
    """What is done about longer prompts of the training: `refuse` ends the start, `drop` leaves them out."""

    shuffle: bool
    """Whether problems are drawn in a seeded random order, a new one each pass over the file."""


class RolloutConfig(SamplingConfig):
    """How the student's responses are sampled."""

    microbatch_responses: Count
    """Responses sampled at once; bounds memory."""

    overlong_filter: bool
    """Whether truncated responses are left out of the loss."""


class TrainConfig(Section):
    """The optimizer and its steps."""

    steps: Count
    """Rollout batches to train on."""

    minibatch_responses: Count
    """Responses an optimizer step; divides the batch of prompts_per_step * responses_per_prompt."""

    microbatch_responses: Count
    """Responses a forward and backward pass; gradients are accumulated, the result is the same."""

    learning_rate: LearningRate
    """AdamW's learning rate after warm-up."""

    warmup_steps: NonNegativeInt
    """Optimizer steps of linear warm-up."""

    betas: Pair
    """AdamW's two decay rates."""

    weight_decay: NonNegative
    """AdamW's decoupled weight decay."""

    max_grad_norm: Positive
    """Gradients are scaled down to this norm."""


class CheckpointConfig(Section):
    """When the run can be resumed from."""

    every: NonNegativeInt
    """Steps between checkpoints; 0: only after the last step."""

    keep_last: Count
    """Newest checkpoints that are kept."""

    keep_best: bool
    """Whether the checkpoint with the highest average avg@k is kept as well; needs benchmarks."""


class TelemetryConfig(Section):
    """What is written beside the metrics file."""

    tensorboard: Switch
    """TensorBoard events; auto: when it is installed."""

    wandb: Tracking = "off"
    """Weights & Biases; offline: into the run folder, for `wandb sync`; online: to its service."""

    mlflow: Tracking = "off"
    """MLflow; offline: into the run folder's mlflow.db; online: to the server that MLFLOW_TRACKING_URI names."""

    project: Text = "nemo-uecr"
    """W&B project and MLflow experiment."""

    save_batch_every: NonNegativeInt
    """Steps between saved batches (replay and credit map), the first step included; 0: none."""

    progress: Progress
    """Progress on the terminal; auto: a bar for people, lines otherwise."""


class Config(Section):
    """A whole run."""

    backend: Literal["local"]
    """What executes the run: one process, CPU or one GPU."""

    device: Device
    """Where the models live; auto: the GPU when there is one."""

    threads: Threads | None
    """CPU threads of the mathematics; null: what torch chooses."""

    run: RunConfig
    student: StudentConfig
    teacher: TeacherConfig
    data: DataConfig
    rollout: RolloutConfig
    method: MethodConfig
    loss: LossConfig
    train: TrainConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    telemetry: TelemetryConfig
    tolerances: TolerancesConfig = TolerancesConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        cross_checks.minibatch(self)
        cross_checks.microbatch(self)
        cross_checks.decoding(self)
        cross_checks.best_checkpoint(self)
        cross_checks.teacher(self)
        return self
