"""The plan of a run inside NeMo-RL: layout, phases, faults, the teacher placed elsewhere, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from nemo_uecr.errors import ConfigError
from nemo_uecr.plan import memory, seconds
from nemo_uecr.plan.faults import layout_faults, mismatches_of
from nemo_uecr.plan.records import GIB, Phase, Plan, RankLine
from nemo_uecr.plan.setting import Setting, setting_of
from nemo_uecr.plan.shapes import Grid, ModelShape, stage_layers

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import NemoConfig
    from nemo_uecr.plan.setting import Device, Efficiency, Lengths

__all__ = ["nemo_plan", "other_placements", "placements", "variant", "what_fits"]

ABSENT = "-"
"""In the layout, where a GPU holds nothing of a model."""

SUGGESTIONS = 3
"""At most, of changes after which a run fits."""


def nemo_plan(config: NemoConfig, device: Device, efficiency: Efficiency, lengths: Lengths) -> Plan:
    """Plan a validated configuration.

    Args:
        config: the run.
        device: limits of each GPU.
        efficiency: assumed shares of these limits.
        lengths: mean tokens for the times.

    Raises:
        DataError: the sizes of a model are not known.
        ConfigError: a model cannot be cut as the layout says.
    """
    if cannot_place := layout_faults(config, None, None):
        raise ConfigError("; ".join(cannot_place))
    setting = setting_of(config, device, efficiency, lengths)
    if cannot_cut := layout_faults(config, setting.student, setting.teacher):
        raise ConfigError("; ".join(cannot_cut))
    phases = _phases(setting)
    mismatches = mismatches_of(config, setting.student, setting.teacher)
    return Plan(
        title=_title(setting),
        hardware=_hardware(setting),
        capacity=device.memory,
        layout=_layout(setting),
        phases=phases,
        host=memory.host_items(setting),
        checkpoint=memory.checkpoint_item(setting),
        facts=_facts(setting),
        assumptions=_assumptions(setting),
        faults=(*_memory_faults(setting, phases), *mismatches),
        mismatches=mismatches,
    )


def _memory_faults(setting: Setting, phases: Sequence[Phase]) -> list[str]:
    """Phases that need more than a device offers, and a KV cache too small for one sequence."""
    faults = []
    for phase in phases:
        if phase.size > setting.capacity:
            largest = max(phase.device, key=lambda item: item.size)
            faults.append(
                f"{phase.name} needs {phase.size / GIB:.1f} GiB on each device ({phase.where}), the "
                f"{setting.device.name} offers {setting.capacity / GIB:.0f}; the largest part is {largest.name} with "
                f"{largest.size / GIB:.1f} GiB"
            )
    if memory.concurrent_responses(setting, setting.longest) == 0:
        faults.append(
            f"rollout: with rollout.gpu_memory={setting.config.rollout.gpu_memory} vLLM's KV cache does not hold one "
            f"sequence of {setting.longest} tokens"
        )
    return faults


def variant(config: NemoConfig, changes: Mapping[str, Any]) -> NemoConfig:
    """The configuration with some dotted keys changed, validated again.

    Raises:
        ConfigError: the changed configuration is refused.
    """
    tree = config.model_dump()
    for name, value in changes.items():
        *path, last = name.split(".")
        section = tree
        for part in path:
            section = section[part]
        section[last] = value
    try:
        return type(config).model_validate(tree)
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


def placements(config: NemoConfig) -> list[tuple[str, dict[str, Any]]]:
    """Where the teacher can be on these GPUs: with the student, or on GPUs of its own; empty with one GPU."""
    cluster = config.cluster
    gpus = cluster.nodes * cluster.gpus_per_node
    own = config.teacher.dedicated_gpus or (1 if cluster.nodes == 1 else cluster.gpus_per_node)
    if gpus < 2 or own >= gpus:
        return []
    return [
        (f"colocated, {gpus} GPUs", {"teacher.dedicated_gpus": 0}),
        (f"{gpus - own} + {own} GPUs", {"teacher.dedicated_gpus": own}),
    ]


def other_placements(
    config: NemoConfig, device: Device, efficiency: Efficiency, lengths: Lengths
) -> dict[str, Plan | str]:
    """The same run with its teacher elsewhere, by place; the reason where a placement is refused."""
    found: dict[str, Plan | str] = {}
    for name, changes in placements(config) if config.method.entry.needs_teacher else ():
        try:
            found[name] = nemo_plan(variant(config, changes), device, efficiency, lengths)
        except ConfigError as error:
            found[name] = str(error)
    return found


def _title(setting: Setting) -> str:
    config = setting.config
    parts = [f"{config.method.name}: student {config.student.model_name}"]
    if setting.teacher is not None:
        own = config.teacher.dedicated_gpus
        where = f"on {own} GPU{'s' if own > 1 else ''} of its own" if setting.dedicated else "on the same GPUs"
        parts.append(f"teacher {config.teacher.model_name} {where}")
    return ", ".join(parts)


def _phases(setting: Setting) -> tuple[Phase, ...]:
    here = "student GPUs" if setting.dedicated else "every GPU"
    phases = [
        Phase("refit", here, memory.refit_items(setting), *seconds.refit_seconds(setting)),
        Phase("rollout", here, memory.rollout_items(setting), *seconds.rollout_seconds(setting)),
    ]
    teacher, grid = setting.teacher, setting.teacher_grid
    if teacher is not None and grid is not None:
        where = "teacher GPUs" if setting.dedicated else here
        items = memory.teacher_scoring_items(setting, teacher, grid)
        phases.append(Phase("score teacher", where, items, *seconds.teacher_seconds(setting, teacher, grid)))
    scoring = memory.student_scoring_items(setting)
    phases.append(Phase("score student", here, scoring, *seconds.student_seconds(setting)))
    if setting.reference:
        phases.append(Phase("score reference", here, scoring, *seconds.reference_seconds(setting)))
    phases.append(Phase("train", here, memory.train_items(setting), *seconds.train_seconds(setting)))
    return tuple(phases)


def _hardware(setting: Setting) -> str:
    cluster, device = setting.config.cluster, setting.device
    gib = setting.capacity / GIB
    return f"{cluster.nodes} x {cluster.gpus_per_node} {device.name}, {gib:.0f} GiB each that can be allocated"


def _facts(setting: Setting) -> tuple[str, ...]:
    rollout, train, grid = setting.config.rollout, setting.config.train, setting.grid
    each, rest = divmod(setting.responses, setting.replicas)
    uneven = "" if rest == 0 else f" ({rest} engines take one more)"
    steps = setting.responses // train.minibatch_responses
    facts = [
        f"{rollout.prompts_per_step} prompts x {rollout.responses_per_prompt} responses = {setting.responses} a step",
        f"{steps} optimizer step{'s' if steps > 1 else ''} of {train.minibatch_responses} responses, "
        f"{train.minibatch_responses // grid.data} on each of {grid.data} data-parallel ranks",
        f"{setting.replicas} vLLM engines, {each} responses each{uneven}; the KV cache of one holds "
        f"{memory.concurrent_responses(setting, setting.longest)} responses of {setting.longest} tokens",
    ]
    if setting.teacher_grid is not None:
        share, rest = divmod(setting.responses, setting.teacher_grid.data)
        filled = f", {setting.teacher_grid.data - rest} masked rows fill up the last" if rest else ""
        facts.append(f"teacher: {share} responses on each of {setting.teacher_grid.data} data-parallel ranks{filled}")
    return (*facts, *_over_the_network(setting))


def _over_the_network(setting: Setting) -> list[str]:
    """Tensor parallelism that does not stay within a node."""
    per_node = setting.config.cluster.gpus_per_node
    ranks = {"student.parallel.tensor": setting.grid.tensor, "rollout.tensor": setting.config.rollout.tensor}
    if setting.teacher_grid is not None:
        ranks["teacher.parallel.tensor"] = setting.teacher_grid.tensor
    return [
        f"warning: {key}={count} does not stay within a node of {per_node} GPUs; every layer sums over the network, "
        "and the times leave these sums out"
        for key, count in ranks.items()
        if per_node % count
    ]


def _assumptions(setting: Setting) -> tuple[str, ...]:
    device, efficiency, lengths = setting.device, setting.efficiency, setting.lengths
    return (
        f"{lengths.said(setting.config.rollout.max_response_tokens)}; memory takes the longest, {setting.longest}",
        f"{device.name}: {device.flops / 1e12:.0f} TFLOP/s bfloat16, {device.bandwidth / 1e12:.1f} TB/s, "
        f"{device.host_link / 1e9:.0f} GB/s to host memory, {device.peer_link / 1e9:.0f} GB/s between GPUs, "
        f"{device.network / 1e9:.0f} GB/s between nodes",
        f"reached: {efficiency.decode:.0%} of bandwidth while generating, with {efficiency.decode_step * 1e3:g} ms a "
        f"decoding step besides, {efficiency.forward:.0%} of FLOP/s while "
        f"scoring, {efficiency.train:.0%} while training",
        f"besides tensors: {efficiency.process_bytes / GIB:.1f} GiB a worker process, "
        f"{efficiency.vllm_bytes / GIB:.0f} GiB for vLLM's activations and graphs",
        "not counted: verification, the advantages (0.1 s for 1008 x 16,384 on one CPU thread), start-up, "
        "fragmentation",
    )


def _layout(setting: Setting) -> tuple[RankLine, ...]:
    """One line a GPU, in rank order: the student's first, then a dedicated teacher's."""
    per_node = setting.config.cluster.gpus_per_node
    lines = []
    for rank in range(setting.grid.ranks):
        teacher = ABSENT
        if setting.teacher is not None and setting.teacher_grid is not None and not setting.dedicated:
            teacher = _shard(setting.teacher, setting.teacher_grid, rank, setting.responses)
        student = _shard(setting.student, setting.grid, rank, setting.responses)
        sharing = setting.grid.data * setting.grid.context
        student += f"; optimizer 1/{sharing}"
        lines.append(RankLine(*divmod(rank, per_node), student, teacher, _engine(setting, rank)))
    if setting.dedicated and setting.teacher is not None and setting.teacher_grid is not None:
        for rank in range(setting.teacher_grid.ranks):
            held = _shard(setting.teacher, setting.teacher_grid, rank, setting.responses)
            lines.append(RankLine(*divmod(setting.grid.ranks + rank, per_node), ABSENT, held, ABSENT))
    return tuple(lines)


def _shard(shape: ModelShape, grid: Grid, rank: int, responses: int) -> str:
    place = grid.place(rank)
    layers = stage_layers(shape, grid, place.pipeline)
    parts = [f"layers {layers.start}-{layers.stop - 1}"]
    if grid.pipeline > 1 and place.pipeline == 0:
        parts.append("embedding")
    if grid.pipeline > 1 and place.pipeline == grid.pipeline - 1:
        parts.append("output")
    if grid.tensor > 1:
        parts.append(f"tensor {place.tensor}/{grid.tensor}")
    if grid.context > 1:
        parts.append(f"context {place.context}/{grid.context}")
    share = -(-responses // grid.data)
    parts.append(f"data {place.data}/{grid.data}: {share} responses")
    return ", ".join(parts)


def _engine(setting: Setting, rank: int) -> str:
    tensor = setting.config.rollout.tensor
    engine, part = divmod(rank, tensor)
    whole = f"engine {engine}/{setting.replicas}"
    return whole if tensor == 1 else f"{whole}, tensor {part}/{tensor}"


def what_fits(config: NemoConfig, device: Device, efficiency: Efficiency, lengths: Lengths) -> list[str]:
    """Single changes after which everything fits, as the user would type them, the gentlest first.

    Each is really planned. Empty when none of those tried is enough.
    """
    found = []
    for changes in _single_changes(config):
        try:
            plan = nemo_plan(variant(config, changes), device, efficiency, lengths)
        except ConfigError:
            continue
        if not plan.misfits:
            found.append(" ".join(f"{key}={str(value).lower()}" for key, value in changes.items()))
        if len(found) == SUGGESTIONS:
            break
    return found


def _single_changes(config: NemoConfig) -> Iterator[dict[str, Any]]:
    """One key each; tensor ranks bring sequence parallelism."""
    least = config.packed(config.longest)
    yield {"student.activation_checkpointing": True}
    yield {"train.tokens_per_microbatch": least}
    yield {"scoring.tokens_per_microbatch": least}
    yield {"scoring.chunk_tokens": 512}
    for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        yield {"rollout.gpu_memory": share}
    for size in (2, 4, 8):
        for role in ("student", "teacher"):
            yield {f"{role}.parallel.tensor": size, f"{role}.parallel.sequence": True}
        yield {"rollout.tensor": size}
    for size in (2, 4, 8):
        yield {"student.parallel.pipeline": size}
        yield {"student.parallel.context": size}
        yield {"cluster.nodes": size * config.cluster.nodes}
