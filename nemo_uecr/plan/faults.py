"""Faults of a layout, and models that do not fit the run: one sentence each, with the remedy.

Every layout rule is in this file. `plan` prints the faults; the check `layout` of the room `start` refuses a run that
has any. A model of unknown size is None, and the rules that need its size are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nemo_uecr.config.nemo_schema import AnyConfig, NemoConfig, ParallelConfig
from nemo_uecr.conversion.reading import PADDING
from nemo_uecr.errors import ConfigError
from nemo_uecr.plan.shapes import ROPES, ModelShape

VLLM_PADDING = 64  # vLLM pads a vocabulary to a multiple of this before it splits it


def refuse(faults: Sequence[str]) -> None:
    """Raise ConfigError with all faults, if there are any."""
    if faults:
        raise ConfigError("; ".join(faults))


def layout_faults(config: NemoConfig, student: ModelShape | None, teacher: ModelShape | None) -> list[str]:
    """Why the models cannot be placed on the GPUs or split across them."""
    own, cluster = config.teacher.dedicated_gpus, config.cluster
    whole_nodes = own % cluster.gpus_per_node == 0 and own < config.gpus
    part_of_the_node = cluster.nodes == 1 and own < cluster.gpus_per_node
    if own and not (whole_nodes or part_of_the_node):
        return [
            f"teacher.dedicated_gpus: got {own} of {cluster.nodes} x {cluster.gpus_per_node}, expected some of one "
            "node's GPUs or whole nodes, with GPUs left for the student"
        ]
    faults = _megatron_faults("student", config.student.parallel, config.student_gpus, student)
    if config.method.needs_teacher():
        faults += _megatron_faults("teacher", config.teacher.parallel, config.teacher_gpus, teacher)
    ranks = config.student_gpus // config.student.parallel.ranks
    if not faults and config.train.minibatch_responses % ranks:
        faults.append(
            f"train.minibatch_responses: got {config.train.minibatch_responses}, which the {ranks} data-parallel ranks "
            f"of the student on {config.student_gpus} GPUs cannot share equally; expected a multiple of "
            f"{math.lcm(ranks, config.rollout.responses_per_prompt)}, with rollout.prompts_per_step to match, or other "
            "GPUs"
        )
    return faults + _rollout_faults(config, student)


def _megatron_faults(role: str, parallel: ParallelConfig, gpus: int, shape: ModelShape | None) -> list[str]:
    faults = []
    if gpus % parallel.ranks:
        faults.append(
            f"{role}.parallel: tensor * pipeline * context = {parallel.ranks} does not divide the {gpus} GPUs of the "
            f"{role}; change the layout or the GPUs"
        )
    if parallel.sequence and parallel.tensor == 1:
        faults.append(f"{role}.parallel.sequence: got true, but {role}.parallel.tensor = 1 has nothing to share")
    if shape is None:
        return faults
    common = math.gcd(shape.heads, shape.kv_heads, shape.feed_forward)
    for key, ranks, whole, what in (
        ("tensor", parallel.tensor, common, f"{common}, which divides its heads and feed-forward columns"),
        ("pipeline", parallel.pipeline, shape.layers, f"the model's {shape.layers} layers"),
    ):
        if whole % ranks:
            faults.append(f"{role}.parallel.{key}: got {ranks}, expected a divisor of {what}")
    return faults


def _rollout_faults(config: NemoConfig, student: ModelShape | None) -> list[str]:
    """Why the engines do not fit: NeMo-RL gives each node its own, unless an engine has more GPUs than a node."""
    tensor, gpus = config.rollout.tensor, config.student_gpus
    node = min(gpus, config.cluster.gpus_per_node)
    shared, owner = (node, "each node") if tensor <= node else (gpus, "the student")
    faults = []
    if gpus % tensor or shared % tensor:
        faults.append(f"rollout.tensor: got {tensor}, expected a divisor of the {shared} GPUs of {owner}")
    if student is not None and not vllm_can_cut(student, tensor):
        faults.append(
            f"rollout.tensor: got {tensor}, expected a divisor of the student's {student.heads} query heads, "
            f"{student.feed_forward} feed-forward columns and padded vocabulary that divides its {student.kv_heads} "
            "key and value heads or is a multiple of them"
        )
    return faults


def vllm_can_cut(shape: ModelShape, tensor: int) -> bool:
    """Whether vLLM can split a model over that many ranks, some of which may hold the same key and value head."""
    padded = -(-shape.vocabulary // VLLM_PADDING) * VLLM_PADDING
    few, many = sorted((tensor, shape.kv_heads))
    return math.gcd(shape.heads, shape.feed_forward, padded) % tensor == 0 and many % few == 0


def mismatches_of(
    config: AnyConfig, student: ModelShape | None, teachers: Mapping[str, ModelShape | None]
) -> tuple[str, ...]:
    """Faults that no layout cures: scaled positions, sequences longer than a model's, and different vocabularies."""
    if student is None:
        return ()
    of_nemo = isinstance(config, NemoConfig)
    scaled = rope_faults({"student": student, **teachers}) if of_nemo else []
    prompt = config.data.max_prompt_tokens if of_nemo else 1  # a local run checks each prompt
    return (*scaled, *length_faults(config, student, teachers, prompt), *vocabulary_faults(config, student, teachers))


def rope_faults(models: Mapping[str, ModelShape | None]) -> list[str]:
    """Models with scaled rotary embeddings: NeMo-RL takes those from `policy.hf_config_overrides`, empty here."""
    return [
        f"{role}.model_name: its rotary embeddings are scaled ({shape.rope}), which backend nemo_rl does not support "
        f"here; take a {role} without rope_scaling in its config.json"
        for role, shape in models.items()
        if shape is not None and shape.rope not in ROPES
    ]


def length_faults(
    config: AnyConfig, student: ModelShape, teachers: Mapping[str, ModelShape | None], prompt: int
) -> list[str]:
    """Models with fewer positions than a prompt of that many tokens and the longest response take."""
    response = config.rollout.max_response_tokens
    asked = [("student", student, "rollout.max_response_tokens", response)]
    if config.evaluation.benchmarks:
        asked.append(("student", student, "evaluation.max_tokens", config.evaluation.max_tokens))
    asked += [(key, shape, "rollout.max_response_tokens", response) for key, shape in teachers.items() if shape]
    return [
        f"a prompt of {prompt} and {key}={tokens} take {prompt + tokens} positions, but the {role} has "
        f"{shape.positions} positions; lower one of the two, or use a {role} with more"
        for role, shape, key, tokens in asked
        if 0 < shape.positions < prompt + tokens
    ]


def vocabulary_faults(config: AnyConfig, student: ModelShape, teachers: Mapping[str, ModelShape | None]) -> list[str]:
    """A student with other output columns than configured, and teachers that differ by more than padding."""
    faults = []
    if isinstance(config, NemoConfig) and student.vocabulary != config.student.vocabulary:
        faults.append(
            f"student.vocabulary={config.student.vocabulary}, but the student has {student.vocabulary} output "
            f"columns; take student.vocabulary={student.vocabulary}"
        )
    return faults + [
        f"the student has {student.vocabulary} output columns, the {key} {teacher.vocabulary}; take a teacher "
        f"with the student's tokenizer: they then differ by padding alone, less than {PADDING}"
        for key, teacher in teachers.items()
        if teacher is not None and abs(teacher.vocabulary - student.vocabulary) >= PADDING
    ]


def teacher_alone_faults(config: NemoConfig, teacher: ModelShape | None, longest: int) -> list[str]:
    """Why a teacher on all GPUs cannot score sequences of up to ``longest`` tokens."""
    faults = _megatron_faults("teacher", config.teacher.parallel, config.gpus, teacher)
    faults += rope_faults({"teacher": teacher})
    if teacher is not None and 0 < teacher.positions < longest:
        faults.append(
            f"the longest sequence of the batch has {longest} tokens, but the teacher has "
            f"{teacher.positions} positions; use a teacher with more"
        )
    needed = config.packed(longest)
    if config.scoring.tokens_per_microbatch < needed:
        faults.append(
            f"scoring.tokens_per_microbatch: got {config.scoring.tokens_per_microbatch}, expected at least {needed}, "
            f"the batch's longest sequence of {longest} tokens as the parallel layouts pad it"
        )
    return faults
