"""Faults of a layout, and models that do not fit the run: one sentence each, with the remedy.

The rules that need a model's sizes are here; `nemo.layout` has those of the GPUs alone. `plan` prints the faults; the
doctor, `config check` and the start of a run refuse a run that has any. A model of unknown size is None, and the rules
that need its size are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from nemo_uecr.config.schema import Config
from nemo_uecr.conversion.reading import PADDING
from nemo_uecr.errors import ConfigError
from nemo_uecr.nemo.layout import Job, Model, layout_faults, sequence_faults
from nemo_uecr.plan.shapes import ModelShape

VLLM_PADDING = 64  # vLLM pads a vocabulary to a multiple of this before it splits it


def refuse(faults: Sequence[str]) -> None:
    """Raise ConfigError with all faults, if there are any."""
    if faults:
        raise ConfigError("; ".join(faults))


def job_faults(job: Job, shapes: Mapping[str, ModelShape | None]) -> list[str]:
    """Why a recipe's models cannot be placed on the GPUs, split as asked, or used together.

    ``shapes`` are the models' by `student`, `teacher`, `teachers.NAME`.
    """
    faults = layout_faults(job)
    for key, model in job.models.items():
        if (shape := shapes.get(key)) is not None:
            faults += _split_faults(model, shape)
            faults += _position_faults(model, shape)
    student = shapes.get("student")
    if student is None:
        return faults
    tensor = job.engine_ranks // job.at("policy.generation.vllm_cfg.pipeline_parallel_size")
    whole = (job.at("policy.generation.vllm_cfg.expert_parallel_size") or 1) > 1
    if not vllm_can_cut(student, tensor, whole_experts=whole):
        columns = (
            f"{student.expert_width} columns of an expert"
            if student.experts
            else (f"{student.feed_forward} feed-forward columns")
        )
        faults.append(
            f"policy.generation.vllm_cfg.tensor_parallel_size: got {tensor}, expected a divisor of the student's "
            f"{student.heads} query heads, {columns} and padded vocabulary that "
            f"divides its {student.kv_heads} key and value heads or is a multiple of them"
        )
    return faults + vocabulary_faults(student, {job.models[key].key: shapes.get(key) for key in job.teachers})


def _split_faults(model: Model, shape: ModelShape) -> Iterator[str]:
    """A layout that cannot split a model of this shape."""
    megatron, parallel = f"{model.key}.megatron_cfg", model.parallel
    common = math.gcd(shape.heads, shape.kv_heads, 0 if shape.experts else shape.feed_forward)
    if common % parallel.tensor:
        yield (
            f"{megatron}.tensor_model_parallel_size: got {parallel.tensor}, expected a divisor of {common}, which "
            f"divides its heads{'' if shape.experts else ' and feed-forward columns'}"
        )
    yield from _expert_faults(model, shape)
    if parallel.stages(shape.layers) is None:
        yield (
            f"{megatron}.pipeline_model_parallel_size: got {parallel.pipeline}, expected a divisor of the model's "
            f"{shape.layers} layers"
        )


def _expert_faults(model: Model, shape: ModelShape) -> Iterator[str]:
    """Expert ranks of a model without experts, or that cannot share the experts that it has."""
    megatron, parallel = f"{model.key}.megatron_cfg", model.parallel
    if not shape.experts:
        if parallel.expert > 1:
            yield (
                f"{megatron}.expert_model_parallel_size: got {parallel.expert}, but {model.name} is a dense model; "
                "take 1"
            )
        return
    if shape.experts % parallel.expert:
        yield (
            f"{megatron}.expert_model_parallel_size: got {parallel.expert}, expected a divisor of the {shape.experts} "
            f"experts of a layer of {model.name}"
        )
    if shape.expert_width % parallel.expert_tensor:
        yield (
            f"{megatron}.expert_tensor_parallel_size: got {parallel.expert_tensor}, expected a divisor of the "
            f"{shape.expert_width} columns of an expert of {model.name}"
        )
    if parallel.expert == 1:  # with more, `layout` has said it from the keys alone
        yield from sequence_faults(model)


def _position_faults(model: Model, shape: ModelShape) -> Iterator[str]:
    length = model.policy["max_total_sequence_length"]
    if 0 < shape.positions < length and not model.policy.get("hf_config_overrides"):
        yield (
            f"{model.key}.max_total_sequence_length: got {length}, but {model.name} has {shape.positions} positions; "
            "lower it, or scale them by hf_config_overrides"
        )


def vllm_can_cut(shape: ModelShape, tensor: int, *, whole_experts: bool = False) -> bool:
    """Whether vLLM can split a model over that many ranks, some of which may hold the same key and value head.

    It cuts each expert, unless its ranks share ``whole_experts``.
    """
    padded = -(-shape.vocabulary // VLLM_PADDING) * VLLM_PADDING
    few, many = sorted((tensor, shape.kv_heads))
    columns = shape.feed_forward
    if shape.experts:
        columns = 0 if whole_experts else shape.expert_width
    return math.gcd(shape.heads, columns, padded) % tensor == 0 and many % few == 0


def mismatches_of(
    config: Config, student: ModelShape | None, teachers: Mapping[str, ModelShape | None]
) -> tuple[str, ...]:
    """Faults of a local run that no device cures: sequences longer than a model's, and different vocabularies."""
    if student is None:
        return ()
    # A local run checks each prompt.
    return (*length_faults(config, student, teachers, 1), *vocabulary_faults(student, teachers))


def length_faults(
    config: Config, student: ModelShape, teachers: Mapping[str, ModelShape | None], prompt: int
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


def vocabulary_faults(student: ModelShape, teachers: Mapping[str, ModelShape | None]) -> list[str]:
    """Teachers whose output columns differ from the student's by more than padding."""
    return [
        f"the student has {student.vocabulary} output columns, the {key} {teacher.vocabulary}; take a teacher "
        f"with the student's tokenizer: they then differ by padding alone, less than {PADDING}"
        for key, teacher in teachers.items()
        if teacher is not None and abs(teacher.vocabulary - student.vocabulary) >= PADDING
    ]
