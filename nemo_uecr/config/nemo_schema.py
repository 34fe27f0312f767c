"""The configuration of a run inside NeMo-RL; `sections` has what both back ends share."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from nemo_uecr.config import cross_checks, nemo_checks
from nemo_uecr.config.schema import (
    Config,
    Count,
    EvaluationConfig,
    LossConfig,
    MethodConfig,
    NonNegative,
    NonNegativeInt,
    Pair,
    Positive,
    PromptTemplate,
    RunConfig,
    SamplingConfig,
    Section,
    Share,
    Text,
    TolerancesConfig,
)

__all__ = ["AnyConfig", "NemoConfig"]

Form = Literal["paper", "nemo_rl"]


class ParallelConfig(Section):
    """How a model is cut over GPUs; the rest of them is data parallel."""

    tensor: Count
    """Ranks that share each layer and the vocabulary."""

    pipeline: Count
    """Ranks that share the stack of layers."""

    context: Count
    """Ranks that share each sequence."""

    sequence: bool
    """Whether the tensor ranks also share the activations between layers."""


class NemoStudentConfig(Section):
    """The policy that is trained with Megatron."""

    model_name: Text
    """Hugging Face model: a local folder or a hub name."""

    megatron_checkpoint: Text | None
    """Megatron checkpoint of that model to start from; null: its Hugging Face weights are converted."""

    vocabulary: Count
    """Real vocabulary columns (the model's vocab_size); the padding that Megatron adds carries no probability."""

    parallel: ParallelConfig
    """Its layout."""

    activation_checkpointing: bool
    """Whether activations are computed again in the backward pass instead of kept."""


class NemoTeacherConfig(Section):
    """The frozen model that scores the student's tokens, with its own layout."""

    model_name: Text | None
    """Hugging Face model: a local folder or a hub name; null where the method reads no teacher."""

    megatron_checkpoint: Text | None
    """Megatron checkpoint of that model; null: its Hugging Face weights are converted."""

    parallel: ParallelConfig
    """Its own layout."""

    fp8: bool
    """Whether Transformer Engine computes in FP8; it changes gap and entropy, so measure it first."""

    dedicated_gpus: NonNegativeInt
    """GPUs of its own: some of the one node's, or whole nodes; 0: on the student's GPUs, only while it scores."""

    offload_limit_mebi: Count
    """MiB that may stay on each GPU after its offload; checked at start."""


class NemoDataConfig(Section):
    """Training problems and how a prompt is made from one."""

    train: Text
    """JSONL file of problems, one object a line."""

    question_key: Text
    """Field of the question."""

    answer_key: Text
    """Field of the reference answer."""

    difficulty_key: Text | None
    """Field of the difficulty; null: problems are not chosen by it."""

    difficulty_low: NonNegative | None
    """Lowest difficulty that is kept; null: all."""

    difficulty_high: NonNegative | None
    """Highest difficulty that is kept; null: all."""

    subset: Count | None
    """Number of problems drawn by the run's seed from those that are kept; null: all of them."""

    prompt_template: PromptTemplate
    """The user's turn; `{question}` is replaced by the question."""

    enable_thinking: bool
    """Handed to the chat template; false is the non-thinking mode."""

    max_prompt_tokens: Count
    """Longest prompt in tokens, chat template included."""

    long_prompts: Literal["refuse", "drop"]
    """What is done about longer prompts of the training: `refuse` ends the start, `drop` leaves them out."""

    shuffle: bool
    """Whether problems are drawn in a random order."""

    verifier_workers: Count
    """Processes that judge the responses."""


class NemoRolloutConfig(SamplingConfig):
    """How vLLM samples the student's responses."""

    overlong_filter: bool
    """Whether truncated responses are left out of the loss."""

    tensor: Count
    """vLLM's tensor-parallel ranks."""

    gpu_memory: Share
    """Share of each GPU's memory that vLLM takes while it generates."""

    enforce_eager: bool
    """Whether vLLM runs without CUDA graphs."""


class NemoTrainConfig(Section):
    """The optimizer and its steps."""

    steps: Count
    """Rollout batches to train on."""

    minibatch_responses: Count
    """Responses an optimizer step; divides the batch, and is divided by the data-parallel size."""

    tokens_per_microbatch: Count
    """Tokens packed into a forward and backward pass; at least the longest, padded prompt and response."""

    learning_rate: Positive
    """Adam's learning rate after warm-up."""

    warmup_steps: NonNegativeInt
    """Rollout batches of linear warm-up."""

    betas: Pair
    """Adam's two decay rates."""

    weight_decay: NonNegative
    """Adam's decoupled weight decay."""

    max_grad_norm: Positive
    """Gradients are scaled down to this norm."""


class ScoringConfig(Section):
    """Scoring passes of student, reference and teacher."""

    tokens_per_microbatch: Count
    """Tokens packed into a scoring forward; at least the longest, padded prompt and response."""

    chunk_tokens: Count
    """Tokens whose logits are reduced at once; bounds memory."""

    timeout_s: Positive
    """Longest wait for a scoring pass or an evaluation; then the run ends and names the workers that are silent."""


class ClusterConfig(Section):
    """The GPUs of the run."""

    nodes: Count
    """Nodes."""

    gpus_per_node: Count
    """GPUs of each node that the run uses."""


class NemoCheckpointConfig(Section):
    """When the run can be resumed from."""

    every: NonNegativeInt
    """Steps between checkpoints; 0: none."""

    keep_last: Count
    """Newest checkpoints that are kept."""


class NemoTelemetryConfig(Section):
    """NeMo-RL's loggers."""

    tensorboard: bool
    """TensorBoard events."""

    wandb: Text | None
    """Weights & Biases project; null: off."""

    mlflow: Text | None
    """MLflow experiment; null: off."""

    save_batch_every: NonNegativeInt
    """Steps between saved batches (replay and credit map); 0: none."""


class ConventionsConfig(Section):
    """Where NeMo-RL departs from the paper: `paper` for the paper's form, `nemo_rl` for NeMo-RL's own."""

    kl: Form
    """Reference KL: plain k3, or with a score-function factor and clamps."""

    grouping: Form
    """Groups: by the prompt's place in the step, or by equal prompt token rows."""

    filters: Form
    """Training log-probabilities: at T_r only, or with generation's top-p and top-k as well."""


class NemoConfig(Section):
    """A whole run."""

    backend: Literal["nemo_rl"]
    """What executes the run: NeMo-RL with Megatron workers and vLLM."""

    run: RunConfig
    student: NemoStudentConfig
    teacher: NemoTeacherConfig
    data: NemoDataConfig
    rollout: NemoRolloutConfig
    method: MethodConfig
    loss: LossConfig
    train: NemoTrainConfig
    scoring: ScoringConfig
    cluster: ClusterConfig
    evaluation: EvaluationConfig
    checkpoint: NemoCheckpointConfig
    telemetry: NemoTelemetryConfig
    conventions: ConventionsConfig
    tolerances: TolerancesConfig

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        cross_checks.minibatch(self)
        nemo_checks.method(self)
        nemo_checks.teacher(self)
        nemo_checks.layout(self)
        nemo_checks.lengths(self)
        cross_checks.decoding(self)
        return self


#: The configuration of either back end; `run`, `method`, `loss` and `tolerances` are the same sections.
AnyConfig = Config | NemoConfig
