"""Layouts that NeMo-RL, Megatron and vLLM can place, and what is said of the others."""

from __future__ import annotations

import pytest

from nemo_uecr.plan.faults import layout_faults, vllm_can_cut
from nemo_uecr.plan.shapes import KNOWN
from tests.plan.subjects import nemo, tiny_shape

FOUR, EIGHT = KNOWN["Qwen/Qwen3-4B"], KNOWN["Qwen/Qwen3-8B"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (["cluster.gpus_per_node=5"], "train.minibatch_responses: got 1008"),
        (["student.parallel.tensor=3"], "student.parallel: tensor * pipeline * context = 3"),
        (["student.parallel.sequence=true"], "student.parallel.sequence: got true"),
        (["teacher.dedicated_gpus=8"], "teacher.dedicated_gpus: got 8"),
        # Whole groups of 8 on 6 equal ranks: multiples of 24, not only of 48.
        (["cluster.gpus_per_node=6", "train.minibatch_responses=28"], "expected a multiple of 24"),
        # 2 nodes of 6 GPUs: 4 divides the 12, but leaves 2 of each node.
        (["cluster.nodes=2", "cluster.gpus_per_node=6", "rollout.tensor=4"], "rollout.tensor: got 4"),
        (["student.parallel.tensor=3", "cluster.gpus_per_node=6"], "student.parallel.tensor: got 3"),
        (["teacher.parallel.pipeline=8"], "teacher.parallel.pipeline: got 8"),
    ],
)
def test_a_layout_that_cannot_be(changes: list[str], fault: str) -> None:
    assert fault in "; ".join(layout_faults(nemo(*changes), FOUR, EIGHT))


@pytest.mark.parametrize(
    ("nodes", "gpus", "dedicated", "tensor"),
    # Engines: on one node, on two, one over both, one over one and a half of three nodes, and beside a teacher's node.
    # Batches: 1008 = 7 * 144 = 6 * 168 = 8 * 126; with one of eight GPUs for the teacher seven train.
    [(1, 8, 0, 4), (2, 6, 0, 3), (2, 6, 0, 12), (3, 4, 0, 6), (2, 6, 6, 6), (1, 8, 1, 7), (1, 7, 0, 1), (2, 8, 8, 8)],
)
def test_layouts_that_can_be(nodes: int, gpus: int, dedicated: int, tensor: int) -> None:
    changes = [
        f"cluster.nodes={nodes}", f"cluster.gpus_per_node={gpus}", f"teacher.dedicated_gpus={dedicated}",
        f"rollout.tensor={tensor}",
    ]  # fmt: skip
    student = FOUR if 32 % tensor == 0 else None
    assert layout_faults(nemo(*changes), student, EIGHT) == []


@pytest.mark.parametrize(("kv_heads", "tensor", "fits"), [(8, 16, True), (6, 4, False), (8, 5, False)])
def test_more_ranks_than_key_heads_hold_copies(kv_heads: int, tensor: int, fits: bool) -> None:
    """vLLM cuts the key and value heads, or gives several ranks the same one; 48 heads, 96 columns, 48 -> 64 rows."""
    shape = tiny_shape(heads=48, kv_heads=kv_heads, feed_forward=96)
    assert vllm_can_cut(shape, tensor) is fits
