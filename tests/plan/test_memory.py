"""Bytes of activations, logits, KV cache and checkpoints against real tensors; FLOPs against known figures."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from nemo_uecr.local import CHUNK_BYTES
from nemo_uecr.plan import local
from nemo_uecr.plan.contents import CPU, Lengths
from nemo_uecr.plan.shapes import KNOWN, ModelShape, Sharded, forward_flops, kv_token_bytes, shape_of
from tests.nemo.source import MISSING, SOURCE
from tests.plan import subjects
from tests.plan.live_bytes import LiveBytes, keeping, nbytes
from tests.plan.subjects import real_model, save_model, sizes_of, split, tiny_shape


def kept(shape: ModelShape, tokens: int, *, bfloat16: bool) -> int:
    """Bytes that autograd keeps of a real forward, the weights themselves aside."""
    model = real_model(shape)
    with keeping(model) as saved, torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
        model.base_model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    return nbytes(saved)


@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [{}, {"hidden": 48, "feed_forward": 96, "heads": 8}], ids=str)
def test_activations_of_a_local_layer_are_exact(sizes: dict[str, int], bfloat16: bool) -> None:
    """One layer more keeps exactly what the formula says."""
    fewer, more = tiny_shape(layers=2, **sizes), tiny_shape(layers=3, **sizes)
    difference = kept(more, 48, bfloat16=bfloat16) - kept(fewer, 48, bfloat16=bfloat16)
    assert difference == local.kept_bytes(more, 48, bfloat16=bfloat16)


@pytest.mark.parametrize("rank", [3, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_under_an_adapter_are_exact(dtype: str, rank: int, tmp_path: Path) -> None:
    from nemo_uecr.generation.adapter import add_adapter
    from nemo_uecr.local.token_model import load_model

    found, tokens = [], 48
    for layers in (2, 3):
        folder = str(save_model(tmp_path, feed_forward=96, layers=layers))
        model = load_model(folder, role="s", dtype=dtype, device=torch.device("cpu"), master_weights=False)
        add_adapter(model.module, rank=rank, alpha=1.0, seed=0)
        with keeping(model.module) as saved, model.forward_context():
            model.features(torch.zeros(1, tokens, dtype=torch.long))
        found.append(nbytes(saved))
    shape = shape_of(folder, role="student")
    assert found[1] - found[0] == local.adapted_bytes(shape, tokens, rank, bfloat16=dtype == "bfloat16")


@pytest.mark.parametrize("keys", [[], ["student.dtype=bfloat16"], ["student.dtype=bfloat16", "student.lora_rank=4"]])
def test_a_recomputed_update_and_its_scoring_stay_below_their_plan(
    keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second micro-batch, whose gradients are added to the first's; an output layer of several chunks."""
    from nemo_uecr.generation.adapter import add_adapter
    from nemo_uecr.local import scores
    from nemo_uecr.local.memory import checkpointed_layers, recomputing
    from nemo_uecr.local.sequences import MicroBatch
    from nemo_uecr.local.token_model import load_model

    prompt, response, vocabulary = 8, 120, 2000
    folder = str(save_model(tmp_path, vocabulary=vocabulary, hidden=64, layers=6, feed_forward=192))
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 4 * vocabulary * 16)
    lengths = [f"data.max_prompt_tokens={prompt}", f"rollout.max_response_tokens={response}", "method.name=grpo"]
    batch = ["train.microbatch_responses=1", "train.activation_checkpointing=true"]
    config, shape = subjects.local(*lengths, *batch, *keys), shape_of(folder, role="student")
    plan = local.local_plan(config, CPU, Lengths(prompt, response, 0.0), sizes=lambda *_: shape)
    lora, dtype = config.student.lora_rank, config.student.dtype
    student = load_model(folder, role="s", dtype=dtype, device=torch.device("cpu"), master_weights=not lora)
    if lora:
        add_adapter(student.module, rank=lora, alpha=1.0, seed=0)
    layers = checkpointed_layers(student.module)
    ids, mask = torch.randint(0, 280, (1, prompt + response)), torch.ones(1, response, dtype=torch.bool)
    micro = MicroBatch(ids, torch.arange(response) + prompt - 1, torch.randint(0, 280, (response,)), mask)
    there = [*student.module.parameters(), *student.module.buffers(), ids, micro.position_N, micro.target_N, mask]
    with recomputing(layers):
        torch.autograd.backward(scores.training_logp(student, micro, temperature=0.7).sum())
        there += [parameter.grad for parameter in student.trained if parameter.grad is not None]
        with LiveBytes(*there) as updating:
            torch.autograd.backward(scores.training_logp(student, micro, temperature=0.7).sum())
    with LiveBytes(*there) as scoring, torch.no_grad():
        for _, logits_NV, _ in scores.token_logits(student, micro):
            logits_NV.float().log_softmax(-1)
    resident = {"student weights", "optimizer", "gradients"}
    for phase, peak in (("update", updating.peak), ("score student", scoring.peak)):
        planned = sum(size for name, size in sizes_of(plan, phase).items() if name not in resident)
        assert peak <= planned <= 2.5 * peak, phase


def test_pinned_copies_round_every_matrix_up_to_a_power_of_two() -> None:
    shape = tiny_shape()
    matrices = [parameter.numel() for parameter in real_model(shape).parameters() if parameter.dim() == 2]
    assert local.pinned_bytes(shape, 4) == sum(2 ** math.ceil(math.log2(4 * count)) for count in matrices)


def test_kv_cache() -> None:
    """A real one; and 2 x 36 layers x 8 heads x 128 x 2 bytes = 147,456 a token, a quarter on each of four ranks."""
    shape = tiny_shape()
    with torch.no_grad():
        cache = real_model(shape)(input_ids=torch.zeros(3, 11, dtype=torch.long), use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == 3 * 11 * kv_token_bytes(shape, 1, 4)
    four = KNOWN["Qwen/Qwen3-4B"]
    assert [kv_token_bytes(four, ranks, 2) for ranks in (1, 4, 16)] == [147_456, 36_864, 147_456 // 8]


@pytest.mark.parametrize("divided", [False, True])
def test_scoring_keeps_one_chunk_beside_the_logits(divided: bool) -> None:
    """What our scoring allocates on top of the logits is the chunk, once more when divided, and small statistics."""
    from nemo_uecr.nemo.worker_scoring import MicroBatch, ModelParallel, ScoreRequest, score_columns

    tokens, chunk, shape = 257, 64, tiny_shape(vocabulary=4096)
    logits = torch.randn(1, tokens, shape.vocabulary).bfloat16()
    ids = torch.randint(0, shape.vocabulary, (1, tokens))
    micro = MicroBatch(ids, torch.tensor([tokens]), torch.tensor([0, tokens]))
    temperatures = {"rollout_logp": 0.7, "logp": 1.0} if divided else {"logp": 1.0}
    request = ScoreRequest(temperatures, True, shape.vocabulary, chunk)
    with LiveBytes(logits, ids) as live:
        score_columns(logits, micro, request, ModelParallel(None, None))
    planned = split(shape).scoring_logits_bytes(tokens, chunk, divided=divided) - logits.nbytes
    rows = 8 * shape.vocabulary * 4  # float32 rows in work
    assert planned <= live.peak <= planned + rows + 64 * tokens


@pytest.mark.nemo
@pytest.mark.skipif(SOURCE is None, reason=MISSING)
@pytest.mark.parametrize("training", [True, False])
def test_logits_are_those_of_nemo_rl(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo-RL's own chunked log-probability on one rank: forward and backward, and scoring alone."""
    import torch.distributed as dist

    monkeypatch.setattr(sys, "path", [*sys.path, str(SOURCE)])
    from nemo_rl.distributed.model_utils import ChunkedDistributedLogprob
    from torch.testing._internal.distributed.fake_pg import FakeStore

    tokens, chunk, shape = 256, 64, tiny_shape(vocabulary=4096)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        logits = torch.randn(1, tokens, shape.vocabulary).bfloat16().requires_grad_(training)
        target = torch.randint(0, shape.vocabulary, (1, tokens))
        group = dist.group.WORLD
        with LiveBytes(logits, target) as live:
            found = ChunkedDistributedLogprob.apply(logits, target, 0, shape.vocabulary, chunk, group, not training)
            if training:
                torch.autograd.backward(found.sum())
    finally:
        dist.destroy_process_group()
    formula = Sharded.train_logits_bytes if training else Sharded.reference_logits_bytes
    assert live.peak + logits.nbytes == pytest.approx(formula(split(shape), tokens, chunk), rel=0.05)


def test_flops() -> None:
    """By hand, 4B at 8192: body 7.27, attention 2.42, head 0.78 GFLOP; and by torch's counter, which knows no mask."""
    from torch.utils.flop_counter import FlopCounterMode

    giga = {name: forward_flops(KNOWN[f"Qwen/Qwen3-{name}"], 8192) / 1e9 for name in ("1.7B", "4B", "8B")}
    assert giga == pytest.approx({"1.7B": 4.38, "4B": 10.46, "8B": 17.55}, abs=0.005)
    shape, length = tiny_shape(), 32
    model = real_model(shape)
    model.config._attn_implementation = "eager"
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros(1, length, dtype=torch.long))
    whole = forward_flops(shape, 2 * length)  # twice the length: no causal half
    norms = 2.0 * shape.layers * (2 * shape.hidden + 2 * shape.head_dim)  # counted as parameters, no matrix product
    assert counter.get_total_flops() / length == pytest.approx(whole - norms, rel=0.01)


def test_megatron_layer_counts() -> None:
    """H 32, query 64, key-value 32, F 40, 10 tokens: 2 x 10 x (4 x 32 + 3 x 64 + 3 x 32 + 3 x 40) = 10,720 bytes.

    Two tensor ranks with sequence parallelism hold half; without it the residuals stay whole: 2,560 + 8,160 / 2.
    """
    shape = tiny_shape()
    assert split(shape).kept_bytes(10) == 10_720
    assert split(shape, tensor=2, sequence=True).kept_bytes(10) == 5_360
    assert split(shape, tensor=2).kept_bytes(10) == 2_560 + 4_080
    # Checkpoints: 2 layers of a stage x 640 bytes, two micro-batches in flight on the first of two stages, one after.
    assert [split(shape, pipeline=2).checkpointed_bytes(stage, 10) for stage in (0, 1)] == [2_560, 1_280]
