"""Plans of NeMo-RL runs: memory and time by hand, layouts, what is refused, and what would fit."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean

import pytest

from nemo_uecr.plan.contents import GIB, GPUS, Lengths, Plan
from nemo_uecr.plan.nemo import Setting, nemo_plan, response_lengths, rollout
from nemo_uecr.plan.shapes import KNOWN, forward_flops
from tests.plan.subjects import nemo, sizes_of

MEBI = 1_048_576
H200 = GPUS["h200"]
LENGTHS = Lengths(prompt=1024, response=7168, sigma=0.0)


def plan_of(*changes: str) -> Plan:
    return nemo_plan(nemo(*changes), H200, LENGTHS)


def item(plan: Plan, phase: str, name: str) -> int:
    return sizes_of(plan, phase)[name]


def seconds(plan: Plan, phase: str) -> float:
    return next(one.seconds for one in plan.phases if one.name == phase)


def test_memory_by_hand() -> None:
    """4,022,468,096 parameters on 8 ranks: weights x 2, gradients x 4, optimizer x 10 / 8; inputs of 36 layers."""
    plan = plan_of()
    assert item(plan, "train", "student weights") == 8_044_936_192
    assert item(plan, "train", "gradients") == 16_089_872_384
    assert item(plan, "train", "optimizer") == 5_028_085_120
    assert item(plan, "train", "activations") == 36 * 18_432 * 2_560 * 2
    assert item(plan, "score teacher", "teacher weights") == 2 * 8_190_735_360
    # 0.6 x 139.8 GiB, all that CUDA reports, - weights - 3 GiB
    assert item(plan, "rollout", "KV cache") == int(0.6 * int(139.8 * GIB)) - 8_044_936_192 - 3 * GIB
    assert plan.checkpoint.size == 14 * 4_022_468_096
    assert plan.faults == ()


def test_what_sequence_parallelism_gathers_and_what_a_sleeping_teacher_may_hold() -> None:
    """18,432 tokens x 4096 x 2 bytes = 144 MiB (8B), x 2560: 90 MiB (4B); Megatron's own buffer has this size."""
    roles = ("policy.megatron_cfg", "++uecr.teacher.megatron_cfg")
    plan = plan_of(
        *(f"{role}.{key}" for role in roles for key in ("tensor_model_parallel_size=2", "sequence_parallel=true"))
    )
    assert item(plan, "score teacher", "gathered states") == 144 * MEBI
    for phase in ("score student", "score reference", "train"):
        assert item(plan, phase, "gathered states") == 90 * MEBI
    assert not any(one.name == "gathered states" for phase in plan_of().phases for one in phase.device)
    plan = plan_of("uecr.teacher.offload_limit_mebi=100")
    assert item(plan, "rollout", "teacher asleep") == item(plan, "train", "teacher asleep") == 100 * MEBI
    apart = plan_of("uecr.teacher.dedicated_gpus=1", "uecr.teacher.offload_limit_mebi=100")
    assert not any(one.name == "teacher asleep" for phase in apart.phases for one in phase.device)


def test_host_memory_by_hand() -> None:
    """Eight ranks: student 8.04 GB each, vLLM and reference the same, teacher 16.4 GB, the optimizer once in all."""
    held = {one.name: one.size for one in plan_of().host}
    assert held["student weights"] == held["vLLM weights"] == held["reference weights"] == 8 * 8_044_936_192
    assert held["teacher weights"] == 8 * 16_381_470_720
    assert held["optimizer"] == 10 * 4_022_468_096
    bare = plan_of("loss_fn.reference_policy_kl_penalty=0.0", "uecr.method.name=grpo", "uecr.teacher=null")
    assert not {"reference weights", "teacher weights"} & {one.name for one in bare.host}
    assert [phase.name for phase in bare.phases] == ["refit", "rollout", "score student", "train", "between phases"]


def test_seconds_by_hand() -> None:
    """1008 x 8192 tokens of 17.55 GFLOP on 8 GPUs at 50% of 790 TFLOP/s: 45.87 s, and 15.3 GiB at 55 GB/s: 0.30 s."""
    plan = plan_of()
    assert seconds(plan, "score teacher") == pytest.approx(45.87 + 0.30, abs=0.05)
    # Training: 3 forwards of 10.46 GFLOP and the body once more, at 45%, on one rank each: 117.9 s and travelling.
    flops = 1008 * 8192 * (4 * 10.460850176e9 - 2 * 151_936 * 2_560)
    assert seconds(plan, "train") == pytest.approx(flops / (8 * 790e12 * 0.45), rel=0.01)
    # Refit: 5.03 GB of optimizer and twice 8.04 GB of weights at 55 GB/s, 8.04 GB through every rank at 12, and 3 s.
    assert seconds(plan, "refit") == pytest.approx(0.384 + 0.670 + 3, abs=0.001)
    assert seconds(plan, "between phases") == pytest.approx(3 + 0.02 * (plan.seconds - 3) / 1.02)


def test_tensor_ranks_sum_and_a_pipeline_waits() -> None:
    """Two tensor ranks, two stages, data 2: 1008 x 8192 / 2 tokens x 18 layers x 4 sums x 5120 / 2 bytes at 300 GB/s.

    That is 2.54 s beside the same FLOPs on 8 GPUs; 504 responses of 8192 tokens are 224 micro-batches: 1 / 224 longer.
    On four GPUs a node, eight tensor ranks sum over the network.
    """
    cut = [
        f"policy.megatron_cfg.{key}"
        for key in ("tensor_model_parallel_size=2", "sequence_parallel=true", "pipeline_model_parallel_size=2")
    ]
    whole, parts = plan_of(), plan_of(*cut)
    alone = 1008 * 8192 * 10.460850176e9 / (8 * 790e12 * 0.5)
    assert seconds(whole, "score student") == pytest.approx(alone + 8_044_936_192 / 55e9, abs=1e-3)
    moved = item(parts, "score student", "student weights") / 55e9
    assert seconds(parts, "score student") == pytest.approx((alone + 2.5367) * (1 + 1 / 224) + moved, abs=1e-3)
    nodes, eight = ("cluster.num_nodes=2", "cluster.gpus_per_node=4"), [cut[0][:-1] + "8", cut[1]]
    slow, fast = (plan_of(*eight, *more) for more in (nodes, ()))
    tokens = 1008 * 8192
    assert seconds(slow, "score student") - seconds(fast, "score student") == pytest.approx(
        36 * 4 * 5120 * 7 / 8 * tokens * (1 / 40e9 - 1 / 300e9), rel=1e-3
    )


def test_seconds_of_decoding() -> None:
    """126 responses an engine; 147,456 bytes of keys and values a token of context, mean context 1024 + 3584.

    The cache's 78.8 GB hold 65 sequences of 8192 tokens, so 2 waves: 7168 x 2 x 8.04 GB at 70% of 4.3 TB/s, 7168 x 126
    x 4608 x 147,456 B at half of it, and 2 ms for each of 14,336 steps; and once each of the 126 prompts, on 8 engines.
    """
    read = 7168 * 2 * 8_044_936_192 / 3.01e12 + 7168 * 126 * 4608 * 147_456 / 2.15e12
    prefill = 126 / 8 * 1024 * forward_flops(KNOWN["Qwen/Qwen3-4B"], 1024) / (790e12 * 0.5)
    expected = read + 14_336 * 0.002 + prefill + 8_044_936_192 / 55e9
    assert seconds(plan_of(), "rollout") == pytest.approx(expected, rel=1e-6)


def test_layout_of_tensor_and_pipeline_ranks() -> None:
    changes = [
        "policy.megatron_cfg.tensor_model_parallel_size=2",
        "policy.megatron_cfg.sequence_parallel=true",
        "policy.megatron_cfg.pipeline_model_parallel_size=2",
    ]
    lines = plan_of(*changes, "policy.generation.vllm_cfg.tensor_parallel_size=2").layout
    assert lines[3].student == "layers 0-17, embedding, tensor 1/2, data 1/2: 504 responses; optimizer 1/2"
    assert lines[7].student == "layers 18-35, output, tensor 1/2, data 1/2: 504 responses; optimizer 1/2"
    assert lines[7].rollout == "engine 3/4, tensor 1/2"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        # 0.08 x 139.8 GiB = 11.2 GiB, weights 7.5 and 3 for vLLM: 0.7 GiB left; a sequence needs 2.5 GiB.
        (
            "policy.generation.vllm_cfg.gpu_memory_utilization=0.08", "does not hold one sequence of 18432 tokens",
        ),
        # 3.5 GiB are enough for that one; of 2048 + 36000 tokens, 5.2 GiB, vLLM asks for at its start.
        (
            "policy.generation.vllm_cfg.gpu_memory_utilization=0.1 ++uecr.evaluation.benchmarks.a=a.jsonl "
            "uecr.evaluation.max_tokens=36000 policy.generation.vllm_cfg.max_model_len=38048",
            "does not hold one sequence of 38048 tokens",
        ),
    ],
)  # fmt: skip
def test_a_run_that_its_models_cannot_make(change: str, fault: str) -> None:
    assert fault in " ".join(plan_of(*change.split()).faults)


def test_vllm_on_gpus_of_its_own() -> None:
    """Six GPUs train, two answer: neither holds what the other needs, and the responses are those of two engines."""
    resources = "policy.generation.colocated.resources.gpus_per_node=2"
    plan, shared = plan_of("policy.generation.colocated.enabled=false", resources), plan_of()
    assert "vLLM weights" in sizes_of(shared, "refit")
    assert "vLLM weights" not in sizes_of(plan, "refit")
    assert [line.rollout for line in plan.layout] == ["-"] * 6 + ["engine 0/2", "engine 1/2"]
    assert [line.student == "-" for line in plan.layout] == [False] * 6 + [True] * 2
    assert seconds(plan, "rollout") > 3 * seconds(shared, "rollout")


def test_padded_rows_take_the_longest_sequence_each() -> None:
    """Without packing two rows of 18,432 tokens are a micro-batch, whatever their lengths."""
    keys = ["policy.sequence_packing.enabled=false", "policy.train_micro_batch_size=2", "policy.logprob_batch_size=2"]
    assert item(plan_of(*keys), "train", "activations") == 2 * item(plan_of(), "train", "activations")


def test_gradients_have_the_width_that_the_recipe_gives_them() -> None:
    """As NeMo-RL's own recipes: 4,022,468,096 parameters x 2; the weights and gradients that travel, 2 + 2 bytes."""
    plan = plan_of("policy.megatron_cfg.distributed_data_parallel_config.grad_reduce_in_fp32=false")
    assert item(plan, "train", "gradients") == 8_044_936_192
    assert seconds(plan, "train") < seconds(plan_of(), "train")


LORA = [f"++policy.megatron_cfg.peft.{change}" for change in ("enabled=true", "dim=8", "target_modules=[]")]


def test_lora_trains_its_adapters_alone() -> None:
    """By hand, 8 x (in + out): 2560 + 6144, 4096 + 2560, 2560 + 19,456, 9728 + 2560, 36 times; 2560 + 151,936 once."""
    trained = 8 * (36 * (8_704 + 6_656 + 22_016 + 12_288) + 154_496)
    plan = plan_of(*LORA)
    assert item(plan, "train", "gradients") == 4 * trained
    assert item(plan, "train", "optimizer") == 10 * trained // 8
    assert item(plan, "train", "student weights") == 8_044_936_192
    assert plan.checkpoint.size == 14 * trained
    assert 0.6 < seconds(plan, "train") / seconds(plan_of(), "train") < 0.8  # with checkpointing 3 passes of 4
    assert not any("peft" in line for line in plan.facts)
    some = plan_of(*LORA[:2], "++policy.megatron_cfg.peft.target_modules=[linear_qkv]")
    assert item(some, "train", "gradients") == 4 * 8 * 36 * 8_704
    but = plan_of(*LORA, "++policy.megatron_cfg.peft.exclude_modules=[output_layer]")
    assert item(but, "train", "gradients") == 4 * (trained - 8 * 154_496)
    patterns = plan_of(*LORA[:2], "++policy.megatron_cfg.peft.target_modules=['*.layers.0.*.linear_qkv']")
    assert item(patterns, "train", "gradients") == 4 * trained


def test_what_is_not_counted_is_said() -> None:
    """The adapters of experts."""
    mixture = ["policy.model_name=Qwen/Qwen3-30B-A3B", "policy.megatron_cfg.expert_model_parallel_size=8"]
    facts = plan_of(*mixture, *LORA).facts
    assert any(line.startswith("warning: policy.megatron_cfg.peft.enabled=True is not counted") for line in facts)


@pytest.mark.parametrize("sigma", [0.6, 1.2])
def test_lengths_are_lognormal_up_to_the_cut(sigma: float) -> None:
    """The mean is the one that was asked for; the median is exp(mu)."""
    drawn = response_lengths(Lengths(200, 5357, sigma), 16_384, 1008)
    mu = math.log(drawn[504])
    assert fmean(drawn) == pytest.approx(5357)
    assert drawn[252] == pytest.approx(math.exp(mu + sigma * NormalDist().inv_cdf(0.25)), rel=0.01)
    at_the_cut = sum(length == pytest.approx(16_384) for length in drawn) / 1008
    assert at_the_cut == pytest.approx(1 - NormalDist().cdf((math.log(16_384) - mu) / sigma), abs=0.002)


def test_lengths_without_spread_or_room_are_all_the_same() -> None:
    assert response_lengths(Lengths(1, 50, 0.0), 100, 4) == pytest.approx([50] * 4)
    assert response_lengths(Lengths(1, 100, 0.9), 100, 4) == pytest.approx([100] * 4)


def test_a_rollout_waits_for_its_slowest_engine() -> None:
    """The same tokens take longer where their lengths differ, by what the average engine waits and more."""
    changes = (
        "grpo.num_prompts_per_step=16",
        "policy.train_global_batch_size=128",
        "policy.generation.max_new_tokens=600",
    )
    settings = (
        Setting(nemo(*changes), GPUS["h100"], Lengths(100, 200, sigma), stays=False) for sigma in (0.0, 0.3, 0.6)
    )
    equal, spread, wide = map(rollout, settings)  # of 128 responses on 8 engines
    assert equal.waiting == pytest.approx(0, abs=1e-9)
    assert 0 < spread.waiting < wide.waiting
    assert equal.seconds < spread.seconds < wide.seconds
