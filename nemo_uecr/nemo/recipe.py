"""A recipe of NeMo-RL's with one section of ours, `uecr`, and what the adapter reads of both.

The recipe stays NeMo-RL's: inheritance, overrides, data sets, environments, validation, loggers. Everything here takes
plain nested mappings and needs neither NeMo-RL nor Ray nor a GPU, so that a laptop and the cluster judge alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_uecr.config.load import MISSING, changed, flattened, validated, value_at
from nemo_uecr.config.schema import (
    BFLOAT16_ON_GPU,
    SEVERAL,
    AnyReward,
    EnvironmentSection,
    EvaluationConfig,
    MethodSection,
    RecipeDataConfig,
    RoutingConfig,
    Section,
    TeacherName,
    Text,
    TolerancesConfig,
    VerifierReward,
    check_answers,
    check_environment,
    check_teachers,
)
from nemo_uecr.core.methods import Method
from nemo_uecr.errors import ConfigError
from nemo_uecr.ranges import Count, NonNegativeInt, Positive

Form = Literal["recipe", "paper"]
#: Our data set and our environment, by the names under which a recipe asks for them.
DATASET, ENVIRONMENT = "nemo_uecr.nemo.task.ProblemsDataset", "nemo_uecr"
#: The key under which a row of our data set carries the number of its problem, besides NeMo-RL's `idx`.
PROBLEM = "uecr_problem"


# -- the section -----------------------------------------------------------------------------------------------------


class TeacherSection(Section):
    """A frozen model that scores the student's tokens: the recipe's `policy` with these values in place of its own.

    All keys but those named here are NeMo-RL's, as under `policy`: `megatron_cfg`, `sequence_packing`, ...
    """

    model_config = ConfigDict(extra="allow")

    model_name: Text  # Hugging Face model: a local folder or a hub name.
    megatron_checkpoint: Text | None = None  # Megatron checkpoint of that model; null: convert its weights.
    # GPUs of its own: some of a single node's, or whole nodes. 0: it scores on the student's GPUs.
    dedicated_gpus: NonNegativeInt = 0
    # Whether it stays on the student's GPUs while the student trains, where vLLM has GPUs of its own. null: `train`
    # keeps it there where it fits, by the rule of `plan`; in launch scripts of your own it leaves.
    stays: bool | None = None
    offload_limit_mebi: Count = 64  # MiB that may remain on each GPU after its offload; checked at the start.

    @property
    def overlay(self) -> dict[str, Any]:
        """The values that replace the policy's, `model_name` among them."""
        return {"model_name": self.model_name, **(self.model_extra or {})}


class UecrSection(Section):
    """All that this project adds to a recipe."""

    method: MethodSection
    # The recipe's section `policy` with these values in place of its own; null where the method reads no teacher.
    teacher: TeacherSection | None = None
    teachers: dict[TeacherName, TeacherSection] = Field(
        {}
    )  # Several named ones instead of `teacher`; `routing` chooses.
    routing: RoutingConfig | None = None
    # The reference KL: `recipe`, NeMo-RL's with all its keys of loss_fn; `paper`, the mean of plain k3 over the tokens.
    kl: Form = "recipe"
    # Training log-probabilities: `recipe`, filtered by generation's top-p and top-k as NeMo-RL does; `paper`, at the
    # temperature alone.
    filters: Form = "recipe"
    correct_at: float = 0.5  # Smallest reward, after scaling and shaping, that counts as correct in telemetry.
    tolerances: TolerancesConfig = TolerancesConfig(**BFLOAT16_ON_GPU)
    folder: Text | None = None  # Saved batches, evaluations and the run's record; null: uecr/ beside the checkpoints.
    save_batch_every: NonNegativeInt = 0  # Steps between saved batches (replay, credit map, audits); 0: none.
    # Whether NeMo-RL's logger writes each step's batch as text, while the GPUs wait: 0.6 GB of 1,008 long responses.
    log_batches: bool = True
    # Longest wait in seconds for a scoring pass or an evaluation; then the run ends and names the silent workers.
    timeout_s: Positive = 3600.0
    chunk_tokens: Count = 2048  # Tokens whose logits are reduced at once in a scoring pass; bounds memory.
    evaluation: EvaluationConfig | None = None  # avg@k during training, beside NeMo-RL's validation; null: none.
    # Problems of our data set, which a recipe names as data.train.dataset_name; null: the recipe's own data.
    data: RecipeDataConfig | None = None
    # Rewards of our environment, which a recipe names as env_name; null: the recipe's own environment.
    reward: Annotated[tuple[AnyReward, ...], *SEVERAL] | None = None
    # What answers the student's turns in our environment, for its gym style; null: a response is one turn there.
    environment: EnvironmentSection = None
    # Whose chat template stands between turns; null: that of the recipe's policy.tokenizer.name.
    tokenizer: Text | None = None
    # Whether a start compares a folder's weights with those that NeMo-RL's conversion was made of by their sha256,
    # which reads all of them, and not by size and time.
    hash_weights: bool = False
    verifier_workers: Count = 8  # Processes that verify responses in evaluations.

    @property
    def active_teachers(self) -> dict[str, TeacherSection]:
        """The teachers by name, `teacher` for the only one; empty if the method reads none."""
        named = self.teachers or ({} if self.teacher is None else {"teacher": self.teacher})
        return dict(named) if self.method.needs_teacher() else {}

    @property
    def dedicated_gpus(self) -> int:
        """GPUs that only the teacher uses."""
        return sum(teacher.dedicated_gpus for teacher in self.active_teachers.values())

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        check_teachers(self)
        check_environment(self)
        check_answers(self)
        if self.dedicated_gpus and len(self.active_teachers) > 1:
            raise ValueError("teachers: several take turns on the student's GPUs; expected dedicated_gpus: 0 in each")
        if self.evaluation is not None and self.evaluation.benchmarks and self.data is None:
            raise ValueError("evaluation.benchmarks: needs data, which says how a problem becomes a prompt")
        if "initial_logp" in self.method.reads:
            raise ValueError(
                f"method.name: got {self.method.name!r}, which reads the initial student at temperature 1, but NeMo-RL "
                "scores it at the rollout's temperature alone; take the local back end or another method"
            )
        return self


#: A key of the section as rules that both back ends share name it, and a key that the user is asked to set.
OWN_KEY = re.compile(r"(?<![\w./+])(?:uecr\.)?((?:method|routing|teachers?|evaluation|tolerances)\.\w)")
ASKED_FOR = re.compile(r"\b(write|pass|choose) (uecr\.[\w.]+=)")


class _Recipe(BaseModel):
    """A recipe as far as it is ours, so that an error names `uecr.` and the key."""

    uecr: UecrSection


def section_of(values: Mapping[str, Any], origins: Mapping[str, str] | None = None, path: str = "") -> UecrSection:
    """The recipe's section `uecr`, checked; ``origins`` and ``path`` are for messages."""
    given = values.get("uecr")
    if given is None:
        raise ConfigError("the recipe has no section uecr; add its method: '++uecr.method={name: uecr, ...}'")
    if missing := [f"uecr.{key}" for key, value in flattened(given).items() if value == MISSING]:
        raise ConfigError(f"missing {', '.join(missing)}; write {missing[0]}=VALUE")
    try:
        return validated(_Recipe, {"uecr": given}, origins or {}, path or "the recipe", within="uecr.").uecr
    except ConfigError as error:
        named = OWN_KEY.sub(r"uecr.\1", str(error))
        raise ConfigError(ASKED_FOR.sub(r"\1 ++\2", named)) from error


# -- the recipe's values ---------------------------------------------------------------------------------------------


def data_sections(values: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The recipe's data sets by their keys; of several, which NeMo-RL's scripts make of one as well, all."""
    data = value_at(values, "data") or {}
    named = {f"data.{name}": data.get(name) for name in ("default", "train", "validation")}
    return [
        (key, each)
        for key, held in named.items()
        for each in (held if isinstance(held, list) else [held])
        if isinstance(each, Mapping)
    ]


def names_in_data(values: Mapping[str, Any], name: str) -> bool:
    """Whether a data set of the recipe names our data set or our environment."""
    return any(name in each.values() for _, each in data_sections(values))


#: The key and value with which rollouts wait for training.
SYNCHRONOUS = "grpo.async_grpo.enabled=false"


def lag_of(values: Mapping[str, Any]) -> int | None:
    """Updates between the policy that begins a response and the one that trains on it; None in the synchronous loop."""
    asynchronous = value_at(values, "grpo.async_grpo") or {}
    if not asynchronous.get("enabled"):
        return None
    if (age := asynchronous.get("max_trajectory_age_steps")) is None:
        raise ConfigError("grpo.async_grpo.max_trajectory_age_steps: missing; expected an integer, such as 1")
    return int(age)


def teacher_gpus(values: Mapping[str, Any], section: UecrSection) -> list[int]:
    """A teacher's own GPUs on each of its nodes, some of the only node's or whole ones; empty where it has none.

    The recipe's ``cluster`` is the whole run's.
    """
    own, cluster = section.dedicated_gpus, values["cluster"]
    if not own:
        return []
    return [own] if cluster["num_nodes"] == 1 else [cluster["gpus_per_node"]] * (own // cluster["gpus_per_node"])


# -- policies --------------------------------------------------------------------------------------------------------


def merged(tree: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A nested mapping with the values of another; lists are replaced."""
    made = dict(tree)
    for key, value in over.items():
        inner = made.get(key)
        made[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return made


def sequence_multiple(policy: Mapping[str, Any]) -> int:
    """A sequence's length must be a multiple of this to be split by a policy's layout."""
    layout = policy["megatron_cfg"]
    context, tensor = layout["context_parallel_size"], layout["tensor_model_parallel_size"]
    return (2 * context if context > 1 else 1) * (tensor if layout["sequence_parallel"] else 1)


def filtered(generation: Mapping[str, Any]) -> bool:
    """Whether generation draws from a part of the vocabulary."""
    return generation["top_p"] < 1 or bool(generation["top_k"])


#: Keys of the student's policy that say something of the student alone.
OF_THE_STUDENT = ("pretrained_checkpoint", "quant_cfg", "router_replay", "draft", "hf_config_overrides")
#: Values of a teacher's policy unless its section gives others: what the student has of them is about its own model.
TEACHER_DEFAULTS: dict[str, object] = {
    "hf_config_overrides": {},
    "megatron_cfg.fp8_cfg.enabled": False,
    "megatron_cfg.expert_model_parallel_size": 1,
    "megatron_cfg.expert_tensor_parallel_size": 1,
    "megatron_cfg.num_layers_in_first_pipeline_stage": None,
    "megatron_cfg.num_layers_in_last_pipeline_stage": None,
    "megatron_cfg.mtp_num_layers": 0,
}


def teacher_policy(teacher: TeacherSection, policy: Mapping[str, Any], columns: int) -> dict[str, Any]:
    """The recipe's ``policy`` as a frozen scorer's at temperature 1, with so many output columns."""
    shared = {key: value for key, value in policy.items() if key not in OF_THE_STUDENT}
    made = merged(changed(shared, TEACHER_DEFAULTS), teacher.overlay)
    values: dict[str, object] = {
        "tokenizer.name": made["model_name"],
        "megatron_cfg.activation_checkpointing": False,
        "megatron_cfg.peft": {"enabled": False},
        "generation.temperature": 1.0,
        "generation.top_p": 1.0,
        "generation.top_k": None,
        "uecr": {"temperature": 1.0, "filters": "paper", "vocabulary": columns},
    }
    if value_at(made, "megatron_cfg.fp8_cfg.enabled"):
        # Transformer Engine keeps an FP8 copy of each weight, which moving the model does not reach.
        values["megatron_cfg.fp8_cfg.force_clear_fp8_caches"] = True
    if teacher.megatron_checkpoint is not None:
        values["pretrained_checkpoint"] = {"path": teacher.megatron_checkpoint, "format": "megatron_bridge"}
    return changed(made, values)


# -- what the adapter reads ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What the adapter reads of a run."""

    folder: Path
    seed: int
    method: Method
    tolerances: TolerancesConfig
    correct_at: float
    kl: Form
    filters: Form  # `paper` as well where generation filters nothing: both are the same then, at one pass less
    model_name: str
    vocabulary: int  # the student's output columns, without Megatron's padding
    teachers: Mapping[str, TeacherSection]
    routing: RoutingConfig | None
    numbered: bool  # whether rollouts leave each row its problem's number; those of vLLM's asynchronous engine do not
    prompts_per_step: int
    responses_per_prompt: int
    minibatch_responses: int
    steps: int  # grpo.max_num_steps; a run of fewer epochs ends before
    lag: int | None  # updates by which a response may be older than the policy it trains; None: the synchronous loop
    temperature: float
    reference_kl: float
    generation_share: float | None  # vLLM's share of the student's GPUs; None where it has GPUs of its own
    chunk_tokens: int
    timeout_s: float
    save_batch_every: int
    log_batches: bool
    evaluation: EvaluationConfig | None
    data: RecipeDataConfig | None
    own_rewards: bool  # whether our environment gives them
    max_turns: int  # of the student in a response
    max_total_sequence_length: int
    plays: bool  # whether our environment answers the turns
    verified: bool  # whether the built-in verifier is among them
    verifier_workers: int

    @property
    def responses(self) -> int:
        """Responses of a step."""
        return self.prompts_per_step * self.responses_per_prompt

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of a step."""
        return self.responses // self.minibatch_responses

    @property
    def whole_steps(self) -> str | None:
        """The key=value with which the environment gets a step's responses together; None where it does.

        NeMo-RL's asynchronous loop and vLLM's asynchronous engine give it each response alone.
        """
        if self.lag is not None:
            return SYNCHRONOUS
        return None if self.numbered else "policy.generation.vllm_cfg.async_engine=false"


def view(values: Mapping[str, Any], section: UecrSection, vocabulary: int) -> Settings:
    """The settings of a recipe that has no fault."""
    policy, grpo, loss = values["policy"], values["grpo"], values["loss_fn"]
    generation = policy["generation"]
    shares = value_at(generation, "colocated.enabled")
    return Settings(
        folder=Path(section.folder or Path(values["checkpointing"]["checkpoint_dir"]) / "uecr"),
        seed=grpo["seed"],
        method=section.method,
        tolerances=section.tolerances,
        correct_at=section.correct_at,
        kl=section.kl,
        filters=section.filters if filtered(generation) else "paper",
        model_name=policy["model_name"],
        vocabulary=vocabulary,
        teachers=section.active_teachers,
        routing=section.routing,
        numbered=not value_at(generation, "vllm_cfg.async_engine"),
        prompts_per_step=grpo["num_prompts_per_step"],
        responses_per_prompt=grpo["num_generations_per_prompt"],
        minibatch_responses=policy["train_global_batch_size"],
        steps=grpo["max_num_steps"],
        lag=lag_of(values),
        temperature=generation["temperature"],
        reference_kl=loss["reference_policy_kl_penalty"],
        generation_share=generation["vllm_cfg"]["gpu_memory_utilization"] if shares else None,
        chunk_tokens=section.chunk_tokens,
        timeout_s=section.timeout_s,
        save_batch_every=section.save_batch_every,
        log_batches=section.log_batches,
        evaluation=section.evaluation if section.evaluation and section.evaluation.benchmarks else None,
        data=section.data,
        own_rewards=names_in_data(values, ENVIRONMENT),
        max_turns=value_at(grpo, "max_rollout_turns") or 1,
        max_total_sequence_length=policy["max_total_sequence_length"],
        plays=section.environment is not None,
        verified=any(isinstance(each, VerifierReward) for each in section.reward or ()),
        verifier_workers=section.verifier_workers,
    )


def worker_section(settings: Settings) -> dict[str, object]:
    """The section `policy.uecr`, by which our worker knows the student's temperature, filters and columns."""
    return {"temperature": settings.temperature, "filters": settings.filters, "vocabulary": settings.vocabulary}


def set_at(tree: Any, key: str, value: object) -> None:
    """Set a value at a dotted key of nested dictionaries and models; sections on the way are made."""
    *path, last = key.split(".")
    for part in path:
        tree = tree.setdefault(part, {}) if isinstance(tree, dict) else getattr(tree, part)
    if isinstance(tree, dict):
        tree[last] = value
    else:
        setattr(tree, last, value)
