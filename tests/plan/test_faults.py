"""Layouts that NeMo-RL, Megatron and vLLM can place, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nemo_uecr.plan.faults import job_faults, vllm_can_cut
from nemo_uecr.plan.shapes import KNOWN
from tests.plan.subjects import nemo, tiny_shape

FOUR, EIGHT = KNOWN["Qwen/Qwen3-4B"], KNOWN["Qwen/Qwen3-8B"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (["cluster.gpus_per_node=5"], "policy.train_global_batch_size: got 1008; 5 data-parallel ranks"),
        (["policy.megatron_cfg.tensor_model_parallel_size=3"], "policy.megatron_cfg: tensor * pipeline * context = 3"),
        # 2 nodes of 6 GPUs: 4 divides the 12, but leaves 2 of each node.
        (
            ["cluster.num_nodes=2", "cluster.gpus_per_node=6", "policy.generation.vllm_cfg.tensor_parallel_size=4"],
            "policy.generation.vllm_cfg.tensor_parallel_size: with pipeline ranks an engine has 4 GPUs",
        ),
        (
            ["policy.megatron_cfg.tensor_model_parallel_size=3", "cluster.gpus_per_node=6"],
            "policy.megatron_cfg.tensor_model_parallel_size: got 3",
        ),
        (
            ["++uecr.teacher.megatron_cfg.pipeline_model_parallel_size=8"],
            "uecr.teacher.megatron_cfg.pipeline_model_parallel_size: got 8",
        ),
        (
            ["policy.max_total_sequence_length=40961"],
            "policy.max_total_sequence_length: got 40961, but Qwen/Qwen3-4B has 40960 positions",
        ),
        (
            ["policy.sequence_packing.logprob_mb_tokens=18431"],
            "policy.sequence_packing.logprob_mb_tokens: got 18431; the longest padded sequence has 18432 tokens",
        ),
        (
            ["++uecr.teacher.sequence_packing.logprob_mb_tokens=100"],
            "uecr.teacher.sequence_packing.logprob_mb_tokens: got 100",
        ),
        (["++policy.dtensor_cfg.enabled=true"], "policy.dtensor_cfg.enabled: got true beside megatron_cfg.enabled"),
        (
            ["policy.megatron_cfg.tensor_model_parallel_size=4", "policy.logprob_batch_size=2"],
            "policy.logprob_batch_size: got 2; with 4 tensor ranks",
        ),
        (["policy.generation.colocated.enabled=false"], "policy.generation.colocated.resources: no GPU for vLLM"),
        (
            [
                "++uecr.teacher.make_sequence_length_divisible_by=3",
                "++uecr.teacher.megatron_cfg.context_parallel_size=2",
            ],
            "uecr.teacher.make_sequence_length_divisible_by: got 3; expected a multiple of 4",
        ),
    ],
)
def test_a_layout_that_cannot_be(changes: list[str], fault: str) -> None:
    assert fault in "; ".join(job_faults(nemo(*changes), {"student": FOUR, "teacher": EIGHT}))


def test_gpus_are_counted_without_the_teachers_own_and_a_dense_model_has_no_expert_ranks() -> None:
    keys = ["uecr.teacher.dedicated_gpus=3", "policy.megatron_cfg.pipeline_model_parallel_size=2"]
    assert [fault for fault in job_faults(nemo(*keys), {"student": FOUR, "teacher": EIGHT}) if "5 GPUs" in fault] == [
        "policy.megatron_cfg: tensor * pipeline * context = 2 does not divide its 5 GPUs, all but the teacher's "
        "dedicated_gpus=3; change the layout or the GPUs"
    ]


MIXTURE = KNOWN["Qwen/Qwen3-30B-A3B"]
EXPERT, TENSOR = "policy.megatron_cfg.expert_model_parallel_size", "policy.megatron_cfg.tensor_model_parallel_size"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ([f"{EXPERT}=6", "cluster.gpus_per_node=6"], f"{EXPERT}: got 6, expected a divisor of the 128 experts"),
        (
            [f"{EXPERT}=8", "policy.megatron_cfg.pipeline_model_parallel_size=2"],
            f"{EXPERT}: got 8; pipeline * expert * expert tensor = 16 does not divide its 8 GPUs",
        ),
        ([f"{TENSOR}=2"], "policy.megatron_cfg.sequence_parallel: got false with tensor_model_parallel_size 2"),
        (
            [f"{TENSOR}=2", f"{EXPERT}=4"],
            "policy.megatron_cfg.sequence_parallel: got false with tensor_model_parallel_size 2",
        ),
        (
            ["policy.megatron_cfg.expert_tensor_parallel_size=5", "cluster.gpus_per_node=10"],
            "policy.megatron_cfg.expert_tensor_parallel_size: got 5, expected a divisor of the 768 columns",
        ),
        (
            ["++uecr.teacher.megatron_cfg.expert_model_parallel_size=8"],
            "uecr.teacher.megatron_cfg.expert_model_parallel_size: got 8, but Qwen/Qwen3-8B is a dense model; take 1",
        ),
    ],
)
def test_a_layout_of_a_mixture_that_cannot_be(changes: list[str], fault: str) -> None:
    assert fault in "; ".join(job_faults(nemo(*changes), {"student": MIXTURE, "teacher": EIGHT}))


def test_a_teacher_s_tensor_ranks_need_no_sequence_parallelism() -> None:
    """Megatron raises in training alone."""
    ranks = [
        "++uecr.teacher.megatron_cfg.tensor_model_parallel_size=2",
        "++uecr.teacher.megatron_cfg.expert_model_parallel_size=8",
    ]
    assert job_faults(nemo(*ranks, f"{EXPERT}=4"), {"student": MIXTURE, "teacher": MIXTURE}) == []


def test_a_dense_teacher_inherits_no_expert_ranks() -> None:
    assert job_faults(nemo(f"{EXPERT}=8"), {"student": MIXTURE, "teacher": EIGHT}) == []


def test_vllm_cuts_each_expert_or_shares_whole_ones() -> None:
    """Eight ranks would have 1.5 columns each of these experts."""
    narrow = {"student": replace(MIXTURE, expert_width=12), "teacher": EIGHT}
    ranks = "policy.generation.vllm_cfg.tensor_parallel_size=8"
    (fault,) = job_faults(nemo(ranks), narrow)
    assert fault.startswith(
        "policy.generation.vllm_cfg.tensor_parallel_size: got 8, expected a divisor of the student's"
    )
    assert "12 columns of an expert" in fault
    assert job_faults(nemo(ranks, "policy.generation.vllm_cfg.expert_parallel_size=8"), narrow) == []


def test_student_and_teacher_have_one_vocabulary() -> None:
    assert job_faults(nemo(), {"student": FOUR, "teacher": replace(EIGHT, vocabulary=152_064)}) == []  # padding
    (fault,) = job_faults(nemo(), {"student": FOUR, "teacher": replace(EIGHT, vocabulary=128_256)})
    assert fault.startswith("the student has 151936 output columns, the uecr.teacher 128256")


def test_stages_of_unequal_depth() -> None:
    stages = ["policy.megatron_cfg.pipeline_model_parallel_size=4", "cluster.gpus_per_node=8"]
    ends = [f"policy.megatron_cfg.num_layers_in_{place}_pipeline_stage" for place in ("first", "last")]
    assert job_faults(nemo(*stages, f"{ends[0]}=8", f"{ends[1]}=8"), {"student": FOUR}) == []  # 10 and 10 between
    (fault,) = job_faults(nemo(*stages, f"{ends[0]}=7", f"{ends[1]}=8"), {"student": FOUR})
    assert fault.startswith("policy.megatron_cfg.pipeline_model_parallel_size: got 4")


def test_vllm_on_gpus_of_its_own_leaves_the_others_to_the_student() -> None:
    apart = ["policy.generation.colocated.enabled=false", "policy.generation.colocated.resources.gpus_per_node=2"]
    job = nemo(*apart)
    assert (job.student.gpus, job.generation_gpus, job.shares_gpus) == (6, 2, False)
    assert job_faults(job, {}) == []


@pytest.mark.parametrize(
    ("nodes", "gpus", "dedicated", "tensor"),
    # Engines: on one node, on two, one over both, one over one and a half of three nodes, and beside a teacher's node.
    # Batches: 1008 = 7 * 144 = 6 * 168 = 8 * 126; with one of eight GPUs for the teacher seven train.
    [(1, 8, 0, 4), (2, 6, 0, 3), (2, 6, 0, 12), (3, 4, 0, 6), (2, 6, 6, 6), (1, 8, 1, 7), (1, 7, 0, 1), (2, 8, 8, 8)],
)
def test_layouts_that_can_be(nodes: int, gpus: int, dedicated: int, tensor: int) -> None:
    changes = [
        f"cluster.num_nodes={nodes}", f"cluster.gpus_per_node={gpus}", f"uecr.teacher.dedicated_gpus={dedicated}",
        f"policy.generation.vllm_cfg.tensor_parallel_size={tensor}",
    ]  # fmt: skip
    student = FOUR if 32 % tensor == 0 else None
    assert job_faults(nemo(*changes), {"student": student, "teacher": EIGHT}) == []


@pytest.mark.parametrize(("kv_heads", "tensor", "fits"), [(8, 16, True), (6, 4, False), (8, 5, False)])
def test_more_ranks_than_key_heads_hold_copies(kv_heads: int, tensor: int, fits: bool) -> None:
    """vLLM cuts the key and value heads, or gives several ranks the same one; 48 heads, 96 columns, 48 -> 64 rows."""
    shape = tiny_shape(heads=48, kv_heads=kv_heads, feed_forward=96)
    assert vllm_can_cut(shape, tensor) is fits
