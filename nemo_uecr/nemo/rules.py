"""What of a recipe is refused, what is adjusted before the run, what is not read: each with its reason.

Everything here takes plain nested mappings and needs neither NeMo-RL nor Ray nor a GPU, so that a laptop and the
cluster judge alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.config.load import MISSING, flattened, value_at
from nemo_uecr.config.schema import check_stop, nearest_name
from nemo_uecr.nemo.recipe import (
    DATASET,
    ENVIRONMENT,
    TeacherSection,
    UecrSection,
    data_sections,
    filtered,
    lag_of,
    merged,
    names_in_data,
    sequence_multiple,
    set_at,
    teacher_gpus,
    teacher_policy,
)


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

#: What ends a turn besides end tokens.
STOP = "policy.generation.stop_strings"

#: Keys of the reference KL that `kl: paper` does not know, with the values that are the paper's.
OF_THE_KL: dict[str, Callable[[Any], bool]] = {
    "loss_fn.reference_policy_kl_type": _is(None, "k3"),
    "loss_fn.use_on_policy_kl_approximation": OFF,
    "loss_fn.token_level_loss": _is(None, True),
}

#: Values with which the numbers would be wrong, what they become, and why.
ADJUSTED: dict[str, tuple[Callable[[Any], bool], object, str]] = {
    "loss_fn.force_on_policy_ratio": (
        bool, False,
        "get_logprobs, in which teachers score, would be skipped; at one update the gradient is equal but for clips",
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


# -- what is refused -------------------------------------------------------------------------------------------------


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
    faults += list(_async_faults(values, section)) + list(_turn_faults(values, section))
    return faults + list(_own_parts_faults(values, section)) + list(_evaluation_faults(values, section))


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


#: Sections of a policy in which a teacher may have keys that the student's has not.
OPEN_SECTIONS = re.compile(r"(hf_config_overrides|megatron_cfg\.(env_vars|fp8_cfg))\.?")


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


#: What NeMo-RL's asynchronous loop does not do, or not for us: keys with the values that it takes, and why.
OF_THE_ASYNC_LOOP: dict[str, tuple[Callable[[Any], bool], str]] = {
    "grpo.async_grpo.max_trajectory_age_steps": (
        lambda age: age >= 1,
        "its buffer has no place for a response then: take 1 or more, or enabled=false",
    ),
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


def _turn_faults(values: Mapping[str, Any], section: UecrSection) -> Iterator[str]:
    """What several turns ask of a recipe, and what our environment lacks inside NeMo-RL."""
    several = section.environment is not None or (value_at(values, "grpo.max_rollout_turns") or 1) > 1
    most = value_at(values, "policy.max_total_sequence_length") or 0
    if several and (room := value_at(values, "policy.generation.vllm_cfg.max_model_len") or most) > most:
        yield (
            f"policy.generation.vllm_cfg.max_model_len: got {room} with several turns; NeMo-RL fails where "
            f"a turn goes beyond policy.max_total_sequence_length={most}"
        )
    if section.environment is None:
        return
    if not names_in_data(values, ENVIRONMENT):
        yield f"uecr.environment: given, but no data has env_name={ENVIRONMENT}; the recipe's own environment answers"
    if section.environment.turn_tokens is not None:
        yield "uecr.environment.turn_tokens: given; in NeMo-RL policy.generation.max_new_tokens limits a turn"
    if value_at(values, "policy.generation.vllm_cfg.async_engine") or lag_of(values) is not None:
        yield "uecr.environment: given with vLLM's asynchronous engine; set vllm_cfg.async_engine=false"
    if section.evaluation is not None and section.evaluation.benchmarks:
        yield "uecr.evaluation.benchmarks: given; its responses are one turn: use `nemo-uecr evaluate --environment`"
    try:
        check_stop(section.environment, value_at(values, "policy.generation.stop_strings") or (), STOP)
    except ValueError as error:
        yield f"uecr.{error}"


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
    delayed, threshold = "grpo.val_start_at", "grpo.stop_at_validation_threshold"
    beside = {delayed: (value_at(values, delayed) or 0) > 1, threshold: value_at(values, threshold) is not None}
    for key in (key for key, set_ in beside.items() if set_):  # main's default, -1, delays nothing
        yield f"{key}: got {value_at(values, key)}; uecr.evaluation runs beside the recipe's validation: remove one"
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


# -- what is adjusted, and what is not read --------------------------------------------------------------------------


@dataclass(frozen=True)
class Adjustment:
    """A value of the recipe that is changed."""

    key: str
    given: object
    value: object
    why: str

    def __str__(self) -> str:
        return f"{self.key}: {self.given!r} becomes {self.value!r}: {self.why}"


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
    if section.environment is not None:
        turns, limit = section.environment.max_turns, value_at(values, "grpo.max_rollout_turns")
        if limit != turns:
            changes.append(Adjustment("grpo.max_rollout_turns", limit, turns, "it is uecr.environment.max_turns"))
        if section.tokenizer is None:
            key, name = f"env.{ENVIRONMENT}.tokenizer", value_at(values, "policy.tokenizer.name")
            changes.append(Adjustment(key, None, name, "its chat template stands between turns"))
    if section.evaluation is not None and section.evaluation.stop:
        key, why = "policy.generation.vllm_cfg.skip_tokenizer_init", "vLLM finds evaluation.stop in text"
        if value_at(values, key) is not False:
            changes.append(Adjustment(key, value_at(values, key), False, why))
    return changes


def apply(tree: Any, changes: Iterable[Adjustment]) -> None:
    """Make the adjustments in a recipe, plain or NeMo-RL's own configuration."""
    for change in changes:
        set_at(tree, change.key, change.value)


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
        kind = value_at(values, "loss_fn.truncated_importance_sampling_type")
        said.append(
            f"loss_fn.use_importance_sampling_correction{f' of type {kind}' if kind else ''} is not used: the ratio of "
            "the loss is to the policy that sampled, which is the correction; its clip is the limit"
        )
    return said
