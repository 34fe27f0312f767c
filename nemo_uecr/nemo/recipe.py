"""A recipe of NeMo-RL's with one section of ours, `uecr`: what it says, what of the recipe is refused or adjusted.

The recipe stays NeMo-RL's: inheritance, overrides, data sets, environments, validation, loggers. Everything here takes
plain nested mappings and needs neither NeMo-RL nor Ray nor a GPU, so that a laptop and the cluster judge alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_uecr.config.load import MISSING, changed, flattened, validated, value_at
from nemo_uecr.config.schema import (
    BFLOAT16_ON_GPU,
    SEVERAL,
    AnyReward,
    EvaluationConfig,
    MethodSection,
    RecipeDataConfig,
    RoutingConfig,
    Section,
    TeacherName,
    Text,
    TolerancesConfig,
    VerifierReward,
    check_teachers,
    nearest_name,
)
from nemo_uecr.core.methods import Method
from nemo_uecr.errors import ConfigError
from nemo_uecr.ranges import Count, NonNegativeInt, Positive

Form = Literal["recipe", "paper"]
#: Our data set and our environment, by the names under which a recipe asks for them.
DATASET, ENVIRONMENT = "nemo_uecr.nemo.task.ProblemsDataset", "nemo_uecr"
#: The key under which a row of our data set carries the number of its problem, besides NeMo-RL's `idx`.
PROBLEM = "uecr_problem"
#: Sections of a policy in which a teacher may have keys that the student's has not.
OPEN_SECTIONS = re.compile(r"(hf_config_overrides|megatron_cfg\.(env_vars|fp8_cfg))\.?")


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
    # Whether it stays on the student's GPUs while the student trains: only where vLLM has GPUs of its own.
    stays: bool = False
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


def _is(*allowed: object) -> Callable[[Any], bool]:
    return lambda value: value in allowed


OFF = _is(None, False)

#: Keys that must have one of some values (a key that is not there is None), and why.
REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "policy.megatron_cfg.enabled": (_is(True), "student and teacher are scored by a Megatron worker"),
    "policy.generation.backend": (_is("vllm"), "the order of a step and its memory checks are vLLM's"),
    "data_plane.enabled": (OFF, "its loop hands the estimator neither problems nor truncation"),
    "on_policy_distillation": (_is(None), "it is another teacher; take uecr.teacher"),
    "grpo.adv_estimator.name": (_is(None, "grpo"), "uecr.method takes the estimator's place; take grpo"),
    "grpo.advantage_clip_low": (_is(None), "it would cut advantages after the method's identities were checked"),
    "grpo.advantage_clip_high": (_is(None), "it would cut advantages after the method's identities were checked"),
    "grpo.invalid_tool_call_advantage": (_is(None), "it overwrites the method's advantages"),
    "grpo.malformed_thinking_advantage": (_is(None), "it overwrites the method's advantages"),
    "loss_fn.disable_ppo_ratio": (OFF, "without a ratio nothing shows that scores and training agree"),
    "loss_fn.use_kl_in_reward": (OFF, "the reward would no longer be the task's"),
    "policy.draft.enabled": (OFF, "a draft model in the step has not been tried"),
    "policy.generation.vllm_cfg.kv_cache_dtype": (_is(None, "auto"), "it is calibrated while the student waits"),
    "policy.megatron_cfg.use_linear_ce_fusion_loss": (OFF, "scoring reads logits, which it never makes"),
    "policy.megatron_cfg.use_fused_linear_logprobs": (OFF, "scoring reads logits, which it never makes"),
    "policy.quant_cfg": (_is(None), "a quantized student has not been tried"),
}  # fmt: skip

#: Keys of the reference KL that `kl: paper` does not know, with the values that are the paper's.
OF_THE_KL: dict[str, Callable[[Any], bool]] = {
    "loss_fn.reference_policy_kl_type": _is(None, "k3"),
    "loss_fn.use_on_policy_kl_approximation": OFF,
    "loss_fn.token_level_loss": _is(None, True),
}

#: Values with which the numbers would be wrong, what they become, and why.
ADJUSTED: dict[str, tuple[Callable[[Any], bool], object, str]] = {
    "loss_fn.force_on_policy_ratio": (
        bool, False, "get_logprobs, in which the teachers score, would be skipped; at one update the gradient is equal",
    ),
    "policy.megatron_cfg.distributed_data_parallel_config.overlap_param_gather": (
        bool, False, "vLLM would get new and previous weights mixed at a refit",
    ),
    "policy.sequence_packing.fuse_loss": (bool, False, "the fused loss has no place for the method's columns"),
}  # fmt: skip

#: Values of the recipe that a run of UECR does not read, and what holds instead.
IGNORED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "grpo.use_leave_one_out_baseline": (bool, "the method's groups subtract the mean of all responses"),
    "grpo.normalize_rewards": (lambda value: value is False, "the method divides by the group's deviation"),
    "grpo.adv_estimator.use_leave_one_out_baseline": (bool, "the method's groups subtract the mean of all responses"),
    "grpo.adv_estimator.normalize_rewards": (
        lambda value: value is False, "the method divides by the group's deviation",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Adjustment:
    """A value of the recipe that is changed."""

    key: str
    given: object
    value: object
    why: str

    def __str__(self) -> str:
        return f"{self.key}: {self.given!r} becomes {self.value!r}: {self.why}"


def faults_of(values: Mapping[str, Any], section: UecrSection) -> list[str]:
    """Why the recipe cannot be trained with the method: key, value and reason in a sentence each."""
    given = {key: value_at(values, key) for key in REFUSED}
    faults = [f"{key}: got {given[key]!r:.60}; {why}" for key, (fits, why) in REFUSED.items() if not fits(given[key])]
    faults += [
        f"{key}: got {processor!r}; pictures and sound are not supported yet" for key, processor in media(values)
    ]
    faults += [f"{key}: missing; write {key}=VALUE" for key, value in flattened(values).items() if value == MISSING]
    faults += list(_loss_faults(values, section))
    faults += list(_batch_faults(values))
    for name, teacher in section.active_teachers.items():
        faults += list(_overlay_faults(name, teacher, values["policy"]))
    faults += list(_dedicated_faults(values, section)) + list(_gym_faults(values, section))
    faults += list(_async_faults(values, section))
    return faults + list(_own_parts_faults(values, section)) + list(_evaluation_faults(values, section))


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


def media(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys of processors that read pictures, sound or film."""
    found = [(f"{key}.processor", str(each.get("processor"))) for key, each in data_sections(values)]
    return [(key, name) for key, name in dict.fromkeys(found) if re.search(r"vlm|image|video|audio", name)]


def _loss_faults(values: Mapping[str, Any], section: UecrSection) -> Iterator[str]:
    if section.kl == "paper" and value_at(values, "loss_fn.reference_policy_kl_penalty"):
        for key, fits in OF_THE_KL.items():
            if not fits(given := value_at(values, key)):
                yield f"{key}: got {given!r}, which uecr.kl=paper does not know; take uecr.kl=recipe or remove it"


def _batch_faults(values: Mapping[str, Any]) -> Iterator[str]:
    prompts, group = value_at(values, "grpo.num_prompts_per_step"), value_at(values, "grpo.num_generations_per_prompt")
    if not prompts or not group:
        key = "grpo.num_generations_per_prompt" if prompts else "grpo.num_prompts_per_step"
        yield f"{key}: missing; this is no recipe of GRPO"
        return
    if group < 2:
        yield f"grpo.num_generations_per_prompt: got {group}; a group of one has no advantage"
    size = value_at(values, "policy.train_global_batch_size")
    if not size or prompts * group % size:
        yield (
            f"policy.train_global_batch_size: got {size}; expected a divisor of the {prompts} x {group} responses "
            "of a step"
        )


def _overlay_faults(name: str, teacher: TeacherSection, policy: Mapping[str, Any]) -> Iterator[str]:
    place = "uecr.teacher" if name == "teacher" else f"uecr.teachers.{name}"
    resolved = teacher_policy(teacher, policy, columns=0)
    for key in flattened(teacher.model_extra or {}):
        above, _, last = key.rpartition(".")
        section = value_at(policy, above) if above else policy
        if isinstance(section, Mapping) and last not in section and not OPEN_SECTIONS.match(key):
            nearest = nearest_name(key, [*TeacherSection.model_fields, *flattened(policy)])
            yield (
                f"{place}.{key}: no such key, the nearest is {place}.{nearest}; a teacher's keys are those of the "
                "recipe's section policy"
            )
        elif (becomes := value_at(resolved, key)) != (given := value_at(teacher.overlay, key)):
            yield f"{place}.{key}: got {given!r:.60}; a frozen scorer at temperature 1 has {becomes!r:.60}"
    length = teacher.overlay.get("max_total_sequence_length")
    if length is not None and length < (own := policy["max_total_sequence_length"]):
        yield f"{place}.max_total_sequence_length: got {length}; the student's sequences have up to {own} tokens"


def _gym_faults(values: Mapping[str, Any], section: UecrSection) -> Iterator[str]:
    if len(section.active_teachers) > 1 and value_at(values, "env.should_use_nemo_gym"):
        yield "uecr.teachers: got several with NeMo-Gym, whose rows do not say which problem they belong to; take one"


def _dedicated_faults(values: Mapping[str, Any], section: UecrSection) -> Iterator[str]:
    own, cluster = section.dedicated_gpus, values["cluster"]
    nodes, gpus = cluster["num_nodes"], cluster["gpus_per_node"]
    shared = value_at(values, "policy.generation.colocated.enabled")
    if shared and not own and any(teacher.stays for teacher in section.active_teachers.values()):
        yield "uecr.teacher.stays: got True; vLLM needs the room (policy.generation.colocated.enabled)"
    if own and (own >= nodes * gpus or (nodes > 1 and own % gpus)):
        wanted = f"whole nodes of {gpus}, fewer than {nodes}" if nodes > 1 else f"fewer than the node's {gpus}"
        yield f"uecr.teacher.dedicated_gpus: got {own}; expected {wanted}"


def lag_of(values: Mapping[str, Any]) -> int | None:
    """Updates between the policy that begins a response and the one that trains on it; None in the synchronous loop."""
    asynchronous = value_at(values, "grpo.async_grpo") or {}
    return int(asynchronous["max_trajectory_age_steps"]) if asynchronous.get("enabled") else None


#: What NeMo-RL's asynchronous loop does not do, or not for us: keys with the values that it takes, and why.
OF_THE_ASYNC_LOOP: dict[str, tuple[Callable[[Any], bool], str]] = {
    "policy.generation.colocated.enabled": (OFF, "vLLM answers while the student trains, on GPUs of its own"),
    "policy.generation.vllm_cfg.async_engine": (_is(True), "the loop needs vLLM's asynchronous engine"),
    "loss_fn.use_importance_sampling_correction": (_is(True), "the loop asks for it"),
    "grpo.use_dynamic_sampling": (OFF, "the asynchronous loop does not resample"),
    "grpo.reward_scaling.enabled": (OFF, "the asynchronous loop does not scale rewards"),
    "grpo.reward_shaping.enabled": (OFF, "the asynchronous loop does not shape rewards"),
    "data.use_multiple_dataloader": (OFF, "the asynchronous loop has one loader"),
    "policy.router_replay.enabled": (OFF, "replay of routes has not been tried in it"),
}


def _async_faults(values: Mapping[str, Any], section: UecrSection) -> Iterator[str]:
    """What the asynchronous loop lacks, and what cannot be said of a response that older policies sampled."""
    if (lag := lag_of(values)) is None:
        return
    for key, (fits, why) in OF_THE_ASYNC_LOOP.items():
        if not fits(given := value_at(values, key)):
            yield f"{key}: got {given!r} with grpo.async_grpo.enabled; {why}"
    if len(section.active_teachers) > 1:
        yield "uecr.teachers: got several with grpo.async_grpo.enabled; rows are routed to teachers in the driver alone"
    if section.evaluation is not None and section.evaluation.benchmarks:
        yield (
            "uecr.evaluation.benchmarks: given with grpo.async_grpo.enabled; vLLM does not stop for an evaluation: "
            "evaluate the checkpoints"
        )
    if lag and filtered(values["policy"]["generation"]):
        key = "top_p" if values["policy"]["generation"]["top_p"] < 1 else "top_k"
        yield (
            f"policy.generation.{key}: got {values['policy']['generation'][key]}; a token of an older policy may lie "
            "outside what the present one may draw: take top_p=1 and top_k=null"
        )


def _evaluation_faults(values: Mapping[str, Any], section: UecrSection) -> Iterator[str]:
    """NeMo-RL's loop validates at one period, and reads the metric of a checkpoint at each."""
    if section.evaluation is None or not section.evaluation.benchmarks:
        return
    tokenizer = values["policy"]["tokenizer"]
    if (name := tokenizer.get("name")) != (model := values["policy"]["model_name"]):
        yield f"policy.tokenizer.name: got {name}; uecr.evaluation writes its prompts with that of {model}"
    if tokenizer.get("chat_template", "default") != "default":
        yield "policy.tokenizer.chat_template: given; uecr.evaluation writes its prompts with the model's own template"
    thinking = None if section.data is None else section.data.enable_thinking
    own = {} if thinking is None else {"enable_thinking": thinking}
    if (given := dict(tokenizer.get("chat_template_kwargs") or {})) != own:
        yield f"policy.tokenizer.chat_template_kwargs: got {given}; uecr.evaluation writes its prompts with {own}"
    for key in ("grpo.val_start_at", "grpo.stop_at_validation_threshold"):
        if given := value_at(values, key):
            yield f"{key}: got {given}; uecr.evaluation runs beside the recipe's validation: remove one"
    every, period = section.evaluation.every, value_at(values, "grpo.val_period") or 0
    if period and every % period:
        yield f"uecr.evaluation.every: got {every}; expected a multiple of grpo.val_period={period}, or 0"
    metric = str(value_at(values, "checkpointing.metric_name"))
    ours = re.search(r"@\d+$", metric)
    if ours and value_at(values, "checkpointing.enabled") and period and every != period:
        yield (
            f"checkpointing.metric_name: got {metric}, which only uecr.evaluation measures; expected "
            f"uecr.evaluation.every={period}, as often as grpo.val_period"
        )


def _own_parts_faults(values: Mapping[str, Any], section: UecrSection) -> Iterator[str]:
    """Our data set or environment without its section, and sections that nothing of the recipe reads."""
    uses_data, uses_rewards = names_in_data(values, DATASET), names_in_data(values, ENVIRONMENT)
    evaluates = section.evaluation is not None and section.evaluation.benchmarks
    if section.data is not None and not uses_data and not evaluates:
        yield f"uecr.data: given, but no data.train.dataset_name is {DATASET}: the recipe's own is trained on"
    if uses_rewards and value_at(values, f"env.{ENVIRONMENT}") is None:
        yield f"env.{ENVIRONMENT}: missing, but data names it as env_name; write env.{ENVIRONMENT}=${{uecr}}"
    if uses_data and section.data is None:
        yield f"uecr.data: missing, but data.train.dataset_name is {DATASET}; set uecr.data.train and its keys"
    if uses_rewards and section.reward is None:
        yield f"uecr.reward: missing, but data names env_name={ENVIRONMENT}; write uecr.reward=math or FILE.py:FUNCTION"
    if section.reward is not None and not uses_rewards:
        yield (
            f"uecr.reward: given, but no data has env_name={ENVIRONMENT}, so the rewards are the recipe's own; name it "
            f"there, with env.{ENVIRONMENT}=${{uecr}}"
        )
    if section.evaluation is not None and section.evaluation.benchmarks:
        if value_at(values, "policy.generation.vllm_cfg.async_engine"):
            yield "policy.generation.vllm_cfg.async_engine: got true; evaluation.benchmarks asks for false"
        needed = section.evaluation.max_tokens + (section.data.max_prompt_tokens if section.data else 0)
        if (room := value_at(values, "policy.generation.vllm_cfg.max_model_len") or 0) < needed:
            yield (
                f"policy.generation.vllm_cfg.max_model_len: got {room}; uecr.evaluation's longest prompt with "
                f"response takes {needed} tokens"
            )


def teacher_gpus(values: Mapping[str, Any], section: UecrSection) -> list[int]:
    """A teacher's own GPUs on each of its nodes, some of the only node's or whole ones; empty where it has none.

    The recipe's ``cluster`` is the whole run's.
    """
    own, cluster = section.dedicated_gpus, values["cluster"]
    if not own:
        return []
    return [own] if cluster["num_nodes"] == 1 else [cluster["gpus_per_node"]] * (own // cluster["gpus_per_node"])


#: Tensor ranks from which NeMo-RL asks that training and scoring take equal micro-batches, except on-policy.
EQUAL_FROM = 4


def adjusted(values: Mapping[str, Any], section: UecrSection) -> list[Adjustment]:
    """What is changed in the recipe before the run, each with its reason; nothing is changed here."""
    changes = [
        Adjustment(key, given, value, why)
        for key, (wrong, value, why) in ADJUSTED.items()
        if wrong(given := value_at(values, key))
    ]
    policy = values["policy"]
    generation = policy["generation"]
    mode = "policy.generation.vllm_cfg.logprobs_mode"
    if (generation["temperature"] != 1 or filtered(generation)) and value_at(values, mode) != "processed_logprobs":
        why = "generation's log-probabilities would be those before the temperature"
        changes.append(Adjustment(mode, value_at(values, mode), "processed_logprobs", why))
    rows, scored = policy["train_micro_batch_size"], policy["logprob_batch_size"]
    ranks = policy["megatron_cfg"]["tensor_model_parallel_size"]
    if value_at(values, "loss_fn.force_on_policy_ratio") and ranks >= EQUAL_FROM and rows != scored:
        why = "NeMo-RL's check of equal micro-batches, which force_on_policy_ratio left out"
        changes.append(Adjustment("policy.logprob_batch_size", scored, rows, why))
    own = int(policy["make_sequence_length_divisible_by"])
    overlays = [merged(policy, teacher.overlay) for teacher in section.active_teachers.values()]
    common = math.lcm(own, *map(sequence_multiple, (policy, *overlays)))
    if common != own:
        why = "student and teacher split a sequence across their ranks"
        changes.append(Adjustment("policy.make_sequence_length_divisible_by", own, common, why))
    if own_gpus := teacher_gpus(values, section):
        cluster = values["cluster"]
        key, less = ("gpus_per_node", own_gpus[0]) if cluster["num_nodes"] == 1 else ("num_nodes", len(own_gpus))
        changes.append(Adjustment(f"cluster.{key}", cluster[key], cluster[key] - less, "the others are the teacher's"))
    if section.evaluation is not None and section.evaluation.stop:
        key, why = "policy.generation.vllm_cfg.skip_tokenizer_init", "vLLM finds evaluation.stop in text"
        if value_at(values, key) is not False:
            changes.append(Adjustment(key, value_at(values, key), False, why))
    return changes


#: Keys of files that NeMo-RL reads from the folder in which a run starts.
FILES = "prompt_file", "system_prompt_file", "data_path"


def missing_files(values: Mapping[str, Any]) -> list[str]:
    """Files of the data sets that are not found from here: one sentence each. A hub's name is none."""
    given = {
        f"{key}.{name}": str(each[name]) for key, each in data_sections(values) for name in FILES if each.get(name)
    }
    return [
        f"{key}: {name} is not found from this folder, and a run reads it from the one in which it starts"
        for key, name in given.items()
        if Path(name).suffix and not Path(name).expanduser().exists()
    ]


def notes(values: Mapping[str, Any]) -> list[str]:
    """What of the recipe a run of UECR does not read, or reads with a loss: one sentence each."""
    said = [
        f"{key}={value_at(values, key)} is not used: {why}"
        for key, (stands, why) in IGNORED.items()
        if stands(value_at(values, key))
    ]
    if value_at(values, "uecr.data") and not names_in_data(values, DATASET):
        said.append(
            "uecr.data.train is not trained on: the recipe has data of its own; evaluations read the other keys"
        )
    if not value_at(values, "checkpointing.enabled"):
        said.append("checkpointing.enabled=false: nothing is saved, so that the run cannot be continued")
    if value_at(values, "grpo.use_dynamic_sampling"):
        said.append(
            "grpo.use_dynamic_sampling drops groups of equal rewards before they are scored; "
            "there R^T alone would have given them a signal"
        )
    if lag_of(values):
        said.append(
            "loss_fn.use_importance_sampling_correction is not used: the ratio of the loss is to the policy that "
            "sampled, which is the correction"
        )
    return said


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


def apply(tree: Any, changes: Iterable[Adjustment]) -> None:
    """Make the adjustments in a recipe, plain or NeMo-RL's own configuration."""
    for change in changes:
        set_at(tree, change.key, change.value)
