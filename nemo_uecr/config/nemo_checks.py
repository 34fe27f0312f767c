"""Rules that span several keys of a NeMo-RL run. Each raises ValueError with a sentence that names the keys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nemo_uecr.config.methods import needs_of

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import NemoConfig, ParallelConfig

__all__ = [
    "data_parallel",
    "layout",
    "lengths",
    "longest",
    "method",
    "packed",
    "sequence_multiple",
    "student_gpus",
    "teacher",
    "teacher_alone",
    "teacher_gpus",
]


MOST_GPUS = 10_000
"""Ranks are listed one by one."""


def student_gpus(config: NemoConfig) -> int:
    """GPUs that the student trains on."""
    return config.cluster.nodes * config.cluster.gpus_per_node - config.teacher.dedicated_gpus


def teacher_gpus(config: NemoConfig) -> int:
    """GPUs that the teacher scores on: its own, or the student's."""
    return config.teacher.dedicated_gpus or student_gpus(config)


def data_parallel(gpus: int, parallel: ParallelConfig) -> int:
    """Data-parallel size of a model on that many GPUs; the remainder is checked in `layout`."""
    return gpus // (parallel.tensor * parallel.pipeline * parallel.context)


def longest(config: NemoConfig) -> int:
    """Tokens of the longest prompt with the longest response."""
    return config.data.max_prompt_tokens + config.rollout.max_response_tokens


def sequence_multiple(config: NemoConfig) -> int:
    """What every sequence is padded to, so that student and teacher can both cut it."""

    def needs(parallel: ParallelConfig) -> int:
        context = 2 * parallel.context if parallel.context > 1 else 1
        return context * (parallel.tensor if parallel.sequence else 1)

    return math.lcm(needs(config.student.parallel), needs(config.teacher.parallel))


def packed(config: NemoConfig, tokens: int) -> int:
    """Tokens that a sequence takes in a micro-batch: NeMo-RL packs lengths that are rounded up."""
    multiple = sequence_multiple(config)
    return -(-tokens // multiple) * multiple


def method(config: NemoConfig) -> None:
    """Refuse a method that reads a score which this back end does not make."""
    if needs_of(config.method.name).needs_initial:
        raise ValueError(
            f"method.name: got {config.method.name!r}, which reads the initial student at temperature 1, but backend "
            "nemo_rl scores it at rollout.temperature alone; use backend=local or another method"
        )


def teacher(config: NemoConfig) -> None:
    """Refuse a method that reads teacher scores without a teacher, and GPUs for a teacher nobody reads."""
    needed = needs_of(config.method.name).needs_teacher
    if needed and config.teacher.model_name is None:
        raise ValueError(
            f"teacher.model_name: got null, but method {config.method.name} reads a teacher; make one with grpo, "
            "convert it and name its folder"
        )
    if not needed and config.teacher.dedicated_gpus:
        raise ValueError(
            f"teacher.dedicated_gpus: got {config.teacher.dedicated_gpus}, but method {config.method.name} loads no "
            "teacher; set it to 0"
        )


def layout(config: NemoConfig) -> None:
    """Refuse models that do not fit the GPUs, and a global batch that the data-parallel ranks cannot share."""
    gpus = config.cluster.nodes * config.cluster.gpus_per_node
    if gpus > MOST_GPUS:
        raise ValueError(f"cluster.nodes * cluster.gpus_per_node = {gpus}, expected at most {MOST_GPUS} GPUs")
    _dedicated(config)
    student = student_gpus(config)
    _divides("student", student, config.student.parallel)
    ranks = data_parallel(student, config.student.parallel)
    if config.train.minibatch_responses % ranks:
        raise ValueError(
            f"train.minibatch_responses: got {config.train.minibatch_responses}, which the {ranks} data-parallel ranks "
            f"of the student on {student} GPUs cannot share equally; {_what_divides(config, ranks)}"
        )
    if needs_of(config.method.name).needs_teacher:
        _divides("teacher", teacher_gpus(config), config.teacher.parallel)
    _engines(config, student)


def teacher_alone(config: NemoConfig) -> None:
    """Refuse a teacher's layout that does not fit the whole cluster, which it gets where no run is around it."""
    _divides("teacher", config.cluster.nodes * config.cluster.gpus_per_node, config.teacher.parallel)


def _what_divides(config: NemoConfig, ranks: int) -> str:
    """The nearest numbers of ranks that share the mini-batch, and the nearest batches that these ranks share."""
    responses, group = config.train.minibatch_responses, config.rollout.responses_per_prompt
    fewer = next(count for count in range(ranks - 1, 0, -1) if responses % count == 0)
    more = next((count for count in range(ranks + 1, min(responses, MOST_GPUS) + 1) if responses % count == 0), None)
    near = " or ".join(str(count) for count in (fewer, more) if count is not None)
    step = math.lcm(ranks, group)  # whole groups on equal ranks
    batches = [batch for batch in (responses // step * step, -(-responses // step) * step) if batch]
    shared = ", or ".join(_minibatch(config, batch) for batch in batches)
    return f"{responses} divides by {near} ranks; {ranks} share {shared}"


def _minibatch(config: NemoConfig, batch: int) -> str:
    """A mini-batch as it would be typed, with the number of prompts nearest to the present one where it must change."""
    group = config.rollout.responses_per_prompt
    responses = config.rollout.prompts_per_step * group
    if responses % batch == 0:
        return f"train.minibatch_responses={batch}"
    steps = max(1, (2 * responses + batch) // (2 * batch))
    return f"train.minibatch_responses={batch} with rollout.prompts_per_step={steps * batch // group}"


def _dedicated(config: NemoConfig) -> None:
    own, cluster = config.teacher.dedicated_gpus, config.cluster
    whole = own % cluster.gpus_per_node == 0 and own < cluster.nodes * cluster.gpus_per_node
    part = cluster.nodes == 1 and own < cluster.gpus_per_node
    if own and not (whole or part):
        raise ValueError(
            f"teacher.dedicated_gpus: got {own} of {cluster.nodes} x {cluster.gpus_per_node}, expected some of one "
            "node's GPUs or whole nodes, with GPUs left for the student"
        )


def _engines(config: NemoConfig, gpus: int) -> None:
    """NeMo-RL cuts each node into engines of its own, unless an engine has more GPUs than a node."""
    tensor, node = config.rollout.tensor, min(gpus, config.cluster.gpus_per_node)
    if gpus % tensor:
        raise ValueError(f"rollout.tensor: got {tensor}, expected a divisor of the {gpus} GPUs")
    if tensor <= node and node % tensor:
        raise ValueError(
            f"rollout.tensor: got {tensor}, expected a divisor of each node's {node} GPUs, because an engine that fits "
            "into a node does not cross to the next"
        )


def _divides(who: str, gpus: int, parallel: ParallelConfig) -> None:
    size = parallel.tensor * parallel.pipeline * parallel.context
    if gpus < size or gpus % size:
        raise ValueError(
            f"{who}.parallel: tensor * pipeline * context = {size} does not divide the {gpus} GPUs of the {who}; "
            "change the layout or the GPUs"
        )
    if parallel.sequence and parallel.tensor == 1:
        raise ValueError(f"{who}.parallel.sequence: got true, but {who}.parallel.tensor = 1 has nothing to share")


def lengths(config: NemoConfig) -> None:
    """Refuse micro-batches in which the longest sequence does not fit."""
    most = longest(config)
    needed, multiple = packed(config, most), sequence_multiple(config)
    rounded = f", rounded up to a multiple of {multiple} for the parallel layouts: {needed}" if needed > most else ""
    for name in ("train", "scoring"):
        tokens = getattr(config, name).tokens_per_microbatch
        if tokens < needed:
            raise ValueError(
                f"{name}.tokens_per_microbatch: got {tokens}, expected at least data.max_prompt_tokens + "
                f"rollout.max_response_tokens = {most}{rounded}"
            )
    data = config.data
    given = [value is not None for value in (data.difficulty_key, data.difficulty_low, data.difficulty_high)]
    if any(given) != all(given):
        raise ValueError("data.difficulty_key, data.difficulty_low and data.difficulty_high: expected all or none")
    low, high = data.difficulty_low, data.difficulty_high
    if low is not None and high is not None and low > high:
        raise ValueError(f"data.difficulty_low: got {low:g}, expected at most data.difficulty_high = {high:g}")
