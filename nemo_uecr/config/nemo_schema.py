"""The configuration of a run inside NeMo-RL; `schema` has the sections that both back ends share.

`plan.faults` checks how the models are split across the GPUs.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, Tag, model_validator

from nemo_uecr.config.schema import (
    SEVERAL,
    CallReward,
    Config,
    EvaluationConfig,
    LossConfig,
    MethodSection,
    OptimizerConfig,
    ProblemsConfig,
    RoutingConfig,
    RunConfig,
    SamplingConfig,
    Section,
    TeacherName,
    Text,
    TolerancesConfig,
    VerifierReward,
    by_key,
    check_sections,
)
from nemo_uecr.ranges import Count, NonNegative, NonNegativeInt, Positive, Share

Form = Literal["paper", "nemo_rl"]


class ParallelConfig(Section):
    """How a model is split across GPUs; the remaining GPUs are data parallel."""

    tensor: Count  # Ranks that share each layer and the vocabulary.
    pipeline: Count  # Ranks that share the stack of layers.
    context: Count  # Ranks that share each sequence.
    sequence: bool  # Whether the tensor ranks also share the activations between layers.

    @property
    def ranks(self) -> int:
        """GPUs of one copy of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def sequence_multiple(self) -> int:
        """A sequence's length must be a multiple of this to be split."""
        context = 2 * self.context if self.context > 1 else 1
        return context * (self.tensor if self.sequence else 1)


class NemoStudentConfig(Section):
    """The policy to train with Megatron."""

    model_name: Text  # Hugging Face model: a local folder or a hub name.
    # Megatron checkpoint of that model to start from; null: convert its Hugging Face weights.
    megatron_checkpoint: Text | None
    # Real vocabulary columns (the model's vocab_size); the padding that Megatron adds carries no probability.
    vocabulary: Count
    parallel: ParallelConfig  # Its layout.
    activation_checkpointing: bool  # Whether the backward pass recomputes activations instead of keeping them.


class NemoTeacherConfig(Section):
    """The frozen model that scores the student's tokens."""

    model_name: Text | None  # Hugging Face model: a local folder or a hub name; null where the method reads no teacher.
    megatron_checkpoint: Text | None  # Megatron checkpoint of that model; null: convert its Hugging Face weights.
    parallel: ParallelConfig  # Its own layout.
    fp8: bool  # Whether Transformer Engine computes in FP8. It changes gap and entropy, so measure it first.
    # GPUs of its own: some of a single node's, or whole nodes. 0: it scores on the student's GPUs.
    dedicated_gpus: NonNegativeInt
    offload_limit_mebi: Count  # MiB that may remain on each GPU after its offload; checked at the start.


class NemoNamedTeacherConfig(Section):
    """One of several teachers, which share layout, FP8 and offload of the section `teacher`."""

    model_name: Text  # Hugging Face model: a local folder or a hub name.
    megatron_checkpoint: Text | None = None  # Megatron checkpoint of that model; null: convert its weights.


class NemoDataConfig(ProblemsConfig):
    """Training problems and how a prompt is made from one."""

    difficulty_key: Text | None  # Field of the difficulty; null: do not filter by it.
    difficulty_low: NonNegative | None  # Lowest difficulty to keep; null: all.
    difficulty_high: NonNegative | None  # Highest difficulty to keep; null: all.
    subset: Count | None  # Number of problems drawn from those kept, by the run's seed; null: all.
    verifier_workers: Count  # Processes that verify responses.

    @model_validator(mode="after")
    def _difficulty_is_a_range(self) -> Self:
        low, high = self.difficulty_low, self.difficulty_high
        if len({self.difficulty_key is None, low is None, high is None}) > 1:
            raise ValueError("data.difficulty_key, _low and _high: got some of them, expected all or none")
        return self


class NemoRlEnvironment(Section):
    """An environment registered in NeMo-RL, as the only reward; all other keys are its own settings."""

    model_config = ConfigDict(extra="allow")

    nemo_rl_environment: Text  # Its name there: math, code_jaccard, reward_model, ...

    @property
    def label(self) -> str:
        return self.nemo_rl_environment


AnyNemoReward = Annotated[
    Annotated[VerifierReward, Tag("[verifier]")]
    | Annotated[CallReward, Tag("[call]")]
    | Annotated[NemoRlEnvironment, Tag("[nemo_rl_environment]")],
    by_key("verifier", "call", "nemo_rl_environment"),
]


class NemoRolloutConfig(SamplingConfig):
    """How vLLM samples the student's responses."""

    tensor: Count  # vLLM's tensor-parallel ranks.
    gpu_memory: Share  # Share of each GPU's memory for vLLM while it generates.
    enforce_eager: bool  # Whether vLLM runs without CUDA graphs.


class NemoTrainConfig(OptimizerConfig):
    """The optimizer and its steps; data-parallel ranks share a mini-batch equally."""

    # Tokens packed into a forward and backward pass; at least those of the longest prompt with response, padded.
    tokens_per_microbatch: Count
    warmup_steps: NonNegativeInt  # Rollout batches of linear warm-up.


class ScoringConfig(Section):
    """Scoring passes of student, reference and teacher."""

    # Tokens packed into a scoring forward pass; at least those of the longest prompt with response, padded.
    tokens_per_microbatch: Count
    chunk_tokens: Count  # Tokens per chunk whose logits are reduced at once; bounds memory.
    # Longest wait in seconds for a scoring pass or an evaluation; then the run ends and names the silent workers.
    timeout_s: Positive


class ClusterConfig(Section):
    """The GPUs of the run."""

    nodes: Count  # Nodes.
    gpus_per_node: Count  # GPUs that the run uses per node.


class NemoCheckpointConfig(Section):
    """Checkpoints to resume from."""

    every: NonNegativeInt  # Steps between checkpoints; 0: none.
    keep_last: Count  # Newest checkpoints to keep.


class NemoTelemetryConfig(Section):
    """NeMo-RL's loggers."""

    tensorboard: bool  # TensorBoard events.
    wandb: Text | None  # Weights & Biases project; null: off.
    mlflow: Text | None  # MLflow experiment; null: off.
    swanlab: Text | None  # SwanLab project; null: off.
    save_batch_every: NonNegativeInt  # Steps between saved batches (replay and credit map); 0: none.


class ConventionsConfig(Section):
    """Where NeMo-RL departs from the paper: `paper` for the paper's form, `nemo_rl` for NeMo-RL's."""

    kl: Form  # Reference KL: plain k3, or with a score-function factor and clamps.
    grouping: Form  # Groups: by problem, or by equal prompt token rows.
    filters: Form  # Training log-probabilities: at T_r only, or with generation's top-p and top-k as well.


class NemoConfig(Section):
    """A whole run."""

    backend: Literal["nemo_rl"]  # What executes the run: NeMo-RL with Megatron workers and vLLM.
    run: RunConfig
    student: NemoStudentConfig
    teacher: NemoTeacherConfig
    # Several named models instead of `teacher.model_name`; `routing` chooses, and they share the section `teacher`.
    teachers: dict[TeacherName, NemoNamedTeacherConfig] = Field({})
    routing: RoutingConfig | None = None
    data: NemoDataConfig
    reward: Annotated[tuple[AnyNemoReward, ...], *SEVERAL] = (VerifierReward(),)
    # Smallest task reward that counts as correct in telemetry.
    correct_at: float = 0.5
    rollout: NemoRolloutConfig
    method: MethodSection
    loss: LossConfig
    train: NemoTrainConfig
    scoring: ScoringConfig
    cluster: ClusterConfig
    evaluation: EvaluationConfig
    checkpoint: NemoCheckpointConfig
    telemetry: NemoTelemetryConfig
    conventions: ConventionsConfig
    tolerances: TolerancesConfig

    @property
    def gpus(self) -> int:
        return self.cluster.nodes * self.cluster.gpus_per_node

    @property
    def active_teachers(self) -> dict[str, NemoTeacherConfig]:
        """The teachers by key; empty if the method reads none."""
        named = {f"teachers.{name}": self.teacher.model_copy(update=dict(one)) for name, one in self.teachers.items()}
        active = (named or {"teacher": self.teacher}).items() if self.method.needs_teacher() else ()
        return {key: teacher for key, teacher in active if teacher.model_name is not None}

    def alone(self, teacher: NemoTeacherConfig) -> NemoConfig:
        """The run with this teacher as its only one."""
        return self.model_copy(update={"teacher": teacher, "teachers": {}, "routing": None})

    @property
    def student_gpus(self) -> int:
        return self.gpus - self.teacher.dedicated_gpus

    @property
    def teacher_gpus(self) -> int:
        """GPUs of the teacher: its own, or the student's."""
        return self.teacher.dedicated_gpus or self.student_gpus

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with response."""
        return self.data.max_prompt_tokens + self.rollout.max_response_tokens

    @property
    def sequence_multiple(self) -> int:
        """Sequences are padded to a multiple of this, so that student and teacher can split them."""
        return math.lcm(self.student.parallel.sequence_multiple, self.teacher.parallel.sequence_multiple)

    def packed(self, tokens: int) -> int:
        """Tokens of a sequence in a micro-batch, where NeMo-RL rounds lengths up."""
        return -(-tokens // self.sequence_multiple) * self.sequence_multiple

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        check_sections(self)
        if len(self.reward) > 1 and any(isinstance(each, NemoRlEnvironment) for each in self.reward):
            raise ValueError("reward.nemo_rl_environment: expected no other; NeMo-RL asks one environment per problem")
        method, own = self.method, self.teacher.dedicated_gpus
        if "initial_logp" in method.reads:
            raise ValueError(
                f"method.name: got {method.name!r}, which reads the initial student at temperature 1, but backend "
                "nemo_rl scores it at rollout.temperature alone; use backend=local or another method"
            )
        if own and (self.teachers or not method.needs_teacher()):
            shared = "several teachers take turns on the student's GPUs"
            reason = shared if self.teachers else f"method {method.name} loads no teacher"
            raise ValueError(f"teacher.dedicated_gpus: got {own}, but {reason}; set it to 0")
        needed = self.packed(self.longest)
        padded = f", rounded up to a multiple of {self.sequence_multiple} for the parallel layouts: {needed}"
        for name, section in (("train", self.train), ("scoring", self.scoring)):
            if section.tokens_per_microbatch < needed:
                raise ValueError(
                    f"{name}.tokens_per_microbatch: got {section.tokens_per_microbatch}, expected at least "
                    f"data.max_prompt_tokens + rollout.max_response_tokens = {self.longest}"
                    f"{padded if needed > self.longest else ''}"
                )
        return self


#: The configuration of either back end; `run`, `method`, `loss` and `tolerances` are the same sections.
AnyConfig = Config | NemoConfig
