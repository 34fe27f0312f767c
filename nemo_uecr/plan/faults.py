"""Why a run cannot be laid out, does not fit, or cannot take its models: one sentence each, with the remedy.

Every rule of layout has its place here. `plan` prints the faults; the doctor, `config check` and the start of a run
inside NeMo-RL refuse by them. A model whose sizes are not known is None, and what depends on them is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.errors import ConfigError

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import ParallelConfig
    from nemo_uecr.config.schema import Config
    from nemo_uecr.plan.shapes import ModelShape

__all__ = ["layout_faults", "mismatches_of", "refuse", "rollout_fault", "teacher_alone_faults", "vocabulary_faults"]

VLLM_PADDING = 64
"""vLLM pads a vocabulary to a multiple of it before it cuts it."""

MOST_RANKS = 1024


def refuse(faults: Sequence[str]) -> None:
    """Raise ConfigError with every fault, if there is one."""
    if faults:
        raise ConfigError("; ".join(faults))


def layout_faults(config: NemoConfig, student: ModelShape | None, teacher: ModelShape | None) -> list[str]:
    """Why the models cannot be placed on the GPUs and cut over them."""
    own, cluster = config.teacher.dedicated_gpus, config.cluster
    whole_nodes = own % cluster.gpus_per_node == 0 and own < config.gpus
    part_of_the_node = cluster.nodes == 1 and own < cluster.gpus_per_node
    if own and not (whole_nodes or part_of_the_node):
        return [
            f"teacher.dedicated_gpus: got {own} of {cluster.nodes} x {cluster.gpus_per_node}, expected some of one "
            "node's GPUs or whole nodes, with GPUs left for the student"
        ]
    faults = _megatron_faults("student", config.student.parallel, config.student_gpus, student)
    if config.method.entry.needs_teacher:
        faults += _megatron_faults("teacher", config.teacher.parallel, config.teacher_gpus, teacher)
    ranks = config.student_gpus // config.student.parallel.ranks
    if not faults and config.train.minibatch_responses % ranks:
        faults.append(
            f"train.minibatch_responses: got {config.train.minibatch_responses}, which the {ranks} data-parallel ranks "
            f"of the student on {config.student_gpus} GPUs cannot share equally; {_what_divides(config, ranks)}"
        )
    return faults + _rollout_faults(config, student)


def _megatron_faults(role: str, parallel: ParallelConfig, gpus: int, shape: ModelShape | None) -> list[str]:
    """What of a model Megatron cannot cut into equal parts."""
    faults = []
    if gpus < parallel.ranks or gpus % parallel.ranks:
        faults.append(
            f"{role}.parallel: tensor * pipeline * context = {parallel.ranks} does not divide the {gpus} GPUs of the "
            f"{role}; change the layout or the GPUs"
        )
    if parallel.sequence and parallel.tensor == 1:
        faults.append(f"{role}.parallel.sequence: got true, but {role}.parallel.tensor = 1 has nothing to share")
    if shape is None:
        return faults
    cut = {
        "query heads": shape.heads,
        "key and value heads": shape.kv_heads,
        "feed-forward columns": shape.feed_forward,
    }
    if any(count % parallel.tensor for count in cut.values()):
        common = math.gcd(*cut.values())
        sizes = ", ".join(f"{count} {what}" for what, count in cut.items())
        faults.append(
            f"{role}.parallel.tensor: got {parallel.tensor}, expected a divisor of {common}; the model has {sizes}"
        )
    if shape.layers % parallel.pipeline:
        faults.append(
            f"{role}.parallel.pipeline: got {parallel.pipeline}, expected a divisor of the model's {shape.layers} "
            "layers"
        )
    return faults


def _what_divides(config: NemoConfig, ranks: int) -> str:
    """The nearest numbers of ranks that share the mini-batch, and the nearest batches that these ranks share."""
    responses, group = config.train.minibatch_responses, config.rollout.responses_per_prompt
    batch = config.rollout.prompts_per_step * group

    def typed(minibatch: int) -> str:
        """As on the command line, with the nearest number of prompts where that must change."""
        if batch % minibatch == 0:
            return f"train.minibatch_responses={minibatch}"
        steps = max(1, (2 * batch + minibatch) // (2 * minibatch))
        return f"train.minibatch_responses={minibatch} with rollout.prompts_per_step={steps * minibatch // group}"

    fewer = next(count for count in range(ranks - 1, 0, -1) if responses % count == 0)
    more = next((count for count in range(ranks + 1, responses + 1) if responses % count == 0), None)
    near = f"{fewer}" if more is None else f"{fewer} or {more}"
    step = math.lcm(ranks, group)  # whole groups on equal ranks
    shared = [typed(size) for size in (responses // step * step, -(-responses // step) * step) if size]
    return f"{responses} divides by {near} ranks; {ranks} share {', or '.join(shared)}"


def _rollout_faults(config: NemoConfig, student: ModelShape | None) -> list[str]:
    """NeMo-RL cuts each node into engines of its own, unless an engine has more GPUs than a node."""
    tensor, gpus = config.rollout.tensor, config.student_gpus
    node = min(gpus, config.cluster.gpus_per_node)
    faults = []
    if gpus % tensor:
        faults.append(f"rollout.tensor: got {tensor}, expected a divisor of the {gpus} GPUs")
    elif tensor <= node and node % tensor:
        faults.append(
            f"rollout.tensor: got {tensor}, expected a divisor of each node's {node} GPUs, because an engine that fits "
            "into a node does not cross to the next"
        )
    fault = None if student is None else rollout_fault(student, tensor)
    return faults if fault is None else [*faults, fault]


def rollout_fault(shape: ModelShape, tensor: int) -> str | None:
    """Why vLLM cannot cut a model over that many GPUs; None where it can.

    Its rule: the ranks divide query heads, feed-forward columns and the padded vocabulary; and they divide the key and
    value heads, or, where there are more ranks than those, the heads divide the ranks.
    """
    padded = -(-shape.vocabulary // VLLM_PADDING) * VLLM_PADDING
    cut = {"query heads": shape.heads, "feed-forward columns": shape.feed_forward, "padded output columns": padded}
    common, kv_heads = math.gcd(*cut.values()), shape.kv_heads
    fits = [
        size
        for size in range(1, min(common, MOST_RANKS) + 1)
        if common % size == 0 and max(kv_heads, size) % min(kv_heads, size) == 0
    ]
    if tensor in fits:
        return None
    sizes = ", ".join(f"{count} {what}" for what, count in cut.items())
    return (
        f"rollout.tensor: got {tensor}, expected one of {', '.join(map(str, fits))}; the student has {sizes} and "
        f"{kv_heads} key and value heads"
    )


def mismatches_of(
    config: Config | NemoConfig, student: ModelShape | None, teacher: ModelShape | None
) -> tuple[str, ...]:
    """What no layout cures: sequences longer than a model's positions, and vocabularies that differ."""
    if student is None:
        return ()
    key, evaluation = "rollout.max_response_tokens", config.evaluation
    faults = _too_long(config, "student", student, key, config.rollout.max_response_tokens)
    if isinstance(config, NemoConfig) and evaluation.benchmarks:
        faults += _too_long(config, "student", student, "evaluation.max_tokens", evaluation.max_tokens)
    if teacher is not None:
        faults += _too_long(config, "teacher", teacher, key, config.rollout.max_response_tokens)
    return (*faults, *vocabulary_faults(config, student, teacher))


def vocabulary_faults(config: Config | NemoConfig, student: ModelShape, teacher: ModelShape | None) -> tuple[str, ...]:
    """Output columns that differ from the configuration's or between the models: the entropy is over all of them."""
    faults = []
    if isinstance(config, NemoConfig) and student.vocabulary != config.student.vocabulary:
        faults.append(
            f"student.vocabulary={config.student.vocabulary}, but the student has {student.vocabulary} output "
            f"columns; take student.vocabulary={student.vocabulary}"
        )
    if teacher is not None and teacher.vocabulary != student.vocabulary:
        faults.append(
            f"the student has {student.vocabulary} output columns, the teacher {teacher.vocabulary}; take a "
            f"teacher whose config.json has vocab_size {student.vocabulary}"
        )
    return tuple(faults)


def _too_long(config: Config | NemoConfig, role: str, shape: ModelShape, key: str, response: int) -> list[str]:
    """Whether the longest prompt with a response of `response` tokens, as `key` allows it, exceeds the positions."""
    prompt = config.data.max_prompt_tokens
    if not 0 < shape.positions < prompt + response:
        return []
    left = shape.positions - prompt
    remedy = f"{key}={left}" if left > 0 else f"data.max_prompt_tokens below {shape.positions}"
    return [
        f"data.max_prompt_tokens + {key} = {prompt + response}, but the {role} was made for "
        f"{shape.positions} positions; take {remedy}, or a {role} that was made for more"
    ]


def teacher_alone_faults(config: NemoConfig, teacher: ModelShape | None, longest: int) -> list[str]:
    """Why a teacher on all GPUs of the cluster cannot score sequences of up to that many tokens."""
    faults = _megatron_faults("teacher", config.teacher.parallel, config.gpus, teacher)
    if teacher is not None and teacher.vocabulary != config.student.vocabulary:
        faults.append(
            f"student.vocabulary={config.student.vocabulary}, but the teacher has {teacher.vocabulary} output columns; "
            "take a teacher with as many as the student that wrote the batch"
        )
    if teacher is not None and 0 < teacher.positions < longest:
        faults.append(
            f"the longest sequence of the batch has {longest} tokens, but the teacher was made for "
            f"{teacher.positions} positions; take a teacher that was made for more"
        )
    needed = config.packed(longest)
    if config.scoring.tokens_per_microbatch < needed:
        faults.append(
            f"scoring.tokens_per_microbatch: got {config.scoring.tokens_per_microbatch}, expected at least {needed}, "
            f"the batch's longest sequence of {longest} tokens as the parallel layouts pad it"
        )
    return faults
