"""Which rank holds which part of student, teacher and vLLM, one line a GPU."""

from __future__ import annotations

from nemo_uecr.plan.records import RankLine
from nemo_uecr.plan.setting import Setting
from nemo_uecr.plan.shapes import ModelShape
from nemo_uecr.plan.shards import Grid, stage_layers

__all__ = ["layout_lines"]

ABSENT = "-"


def layout_lines(setting: Setting) -> tuple[RankLine, ...]:
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
