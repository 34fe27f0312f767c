"""What is arranged for a GPU, as far as a CPU shows it: attention without a mask, few copies, large chunks."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from nemo_uecr.core.agreement import TokenSample
from nemo_uecr.demo.task import build_tokenizer
from nemo_uecr.local import CHUNK_BYTES, trainer, update
from nemo_uecr.local.memory import state_of
from nemo_uecr.local.probes import TokenRanks, TopTokens
from nemo_uecr.local.scores import score_policy, training_logp
from nemo_uecr.local.token_model import TokenModel
from nemo_uecr.scoring import reduce
from tests.gpu.pretend_cuda import pretend, to_cuda
from tests.local import tiny
from tests.local.updates import config_of, inputs_for, ragged, updated

ROWS = [torch.arange(4), torch.arange(4, 8)]
SIZES = tiny.sizes(build_tokenizer())
MODULES: dict[str, Callable[[], Any]] = {
    "qwen3": lambda: tiny.new_model(build_tokenizer(), seed=0),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, sliding_window=64)),
}


@pytest.mark.parametrize("architecture", MODULES)
def test_attention_is_causal_without_a_mask_and_nothing_is_asked_of_the_ids(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flash attention takes no mask; transformers' search for packed sequences would wait for the GPU."""
    from transformers import masking_utils

    asked: list[tuple[Any, bool]] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def attention(*heads: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, **options: Any) -> Tensor:
        asked.append((attn_mask, is_causal))
        return real(*heads, attn_mask=attn_mask, is_causal=is_causal, **options)

    def search(position_ids: Tensor) -> None:
        raise AssertionError("asked for packed sequences")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", search)
    model = TokenModel(MODULES[architecture]().eval(), None, splits=True, compute=None, name="m")  # type: ignore[arg-type]
    training_logp(model, ragged().micro_batch(torch.arange(8)), temperature=1.0)
    score_policy(model, ragged(), ROWS, rollout_temperature=0.7, entropy=True)
    assert len(asked) == 2 * 3  # of two layers, training's and one for each of two micro-batches
    assert all(mask is None and causal for mask, causal in asked)
    assert masking_utils.find_packed_sequence_indices is search


def test_cudnn_computes_no_attention_of_a_loaded_model() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    tiny.load()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


class Casts(TorchDispatchMode):
    """Counts conversions of float32 tensors of a shape to bfloat16."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and args[0].shape == self.shape:
            self.count += kwargs.get("dtype") == torch.bfloat16
        return func(*args, **(kwargs or {}))


def untied(dtype: str, tmp_path: Path) -> TokenModel:
    tokenizer = build_tokenizer()
    folder = tiny.save_model(
        tiny.new_model(tokenizer, seed=2, tie_word_embeddings=False), tokenizer, tmp_path / "model"
    )
    return tiny.load(folder, dtype=dtype)


def test_the_output_layer_is_cast_once_for_all_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 tokens in eleven chunks: once in each of two scoring micro-batches, once in training for both directions."""
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 4 * 283 * 3)
    model = untied("bfloat16", tmp_path)
    with Casts(model.head_parameters()[0].shape) as scoring:
        score_policy(model, ragged(), ROWS, rollout_temperature=0.7, entropy=True)
    with Casts(model.head_parameters()[0].shape) as training:
        training_logp(model, ragged().micro_batch(torch.arange(8)), temperature=0.7).sum().backward()
    assert (scoring.count, training.count) == (2, 1)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-6), ("bfloat16", 3e-3)])
def test_chunks_have_the_gradient_of_the_whole(
    dtype: str, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, found = untied(dtype, tmp_path), []
    for chunk_bytes in (2**27, 4 * 283 * 3):
        monkeypatch.setitem(CHUNK_BYTES, "cpu", chunk_bytes)
        training_logp(model, ragged().micro_batch(torch.arange(8)), temperature=0.7).sum().backward()
        assert all(weight.grad is not None and weight.grad.dtype == torch.float32 for weight in model.trained)
        found.append(torch.cat([weight.grad.flatten() for weight in model.trained if weight.grad is not None]).double())
        model.module.zero_grad()
    assert 0 < float((found[1] - found[0]).norm() / found[0].norm()) < most


def test_ratios_leave_the_device_once_an_optimizer_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of micro-batches and of chunks."""
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 4 * 283 * 3)
    copies, real = [], update.to_host
    monkeypatch.setattr(update, "to_host", lambda tensors: copies.append(1) or real(tensors))
    model = tiny.load()
    config = config_of("train.microbatch_responses=2", "train.minibatch_responses=4")
    updated(model, inputs_for(model, config, ragged()), config)
    assert len(copies) == 2


def test_scoring_on_a_gpu_waits_twice_a_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the scores, and to read whether all are finite; whatever the number of chunks. Nothing mixes devices."""
    monkeypatch.setattr(reduce, "HAS_TRITON", False)
    monkeypatch.setitem(CHUNK_BYTES, "cuda", 4 * 283 * 3)
    model = tiny.load()
    mask_BT = ragged().mask_BT
    sample = TokenSample.of(mask_BT, columns=40, seed=0)

    def scored(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        top, ranks = TopTokens(sample), TokenRanks(mask_BT.shape, None)
        found = score_policy(model, ragged(), rows, rollout_temperature=0.7, entropy=False, probes=[top, ranks])
        return found.rollout_logp_BT, top.ids_CK

    (logp_BT, ids_CK), waits = scored(ROWS), []
    with pretend() as found:
        to_cuda(model.module)
        for rows in (ROWS, list(torch.arange(8).split(1))):
            again_BT, again_CK = scored(rows)
            # Numbers of `where` come from what stands in for the kernels.
            before = sum(count for name, count in found.items() if not name.startswith("where"))
            assert (again_BT - logp_BT).nan_to_num().abs().max() < 1e-5
            assert torch.equal(again_CK, ids_CK)
            waits.append(before - sum(waits))
    assert waits == [2 * 2, 2 * 8], found


@pytest.mark.parametrize(
    ("device", "gpu", "fused"),
    [("auto", True, True), ("cuda", True, True), ("cpu", True, False), ("auto", False, False)],
)
def test_adamw_is_fused_on_a_gpu(device: str, gpu: bool, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU its arithmetic is the other's within rounding; what it keeps moves as a whole, counts of steps too."""
    model = tiny.load()
    plain, config = config_of("device=cpu"), config_of(f"device={device}")
    after = []
    for each in (plain, config):
        own = replace(model, module=copy.deepcopy(model.module))
        with monkeypatch.context() as pretended:  # no longer: torch's CUDA build would ask the driver in a step
            pretended.setattr(torch.cuda, "is_available", lambda: gpu)
            optimizer = update.build_optimizer(own, each)
        update.update(own, optimizer, *inputs_for(own, each, ragged()), each, steps_done=0)
        after.append(torch.cat([weight.detach().flatten() for weight in own.trained]))
    assert optimizer.param_groups[0].get("fused") is (True if fused else None)
    assert float((after[1] - after[0]).abs().max()) <= (1e-6 if fused else 0.0)
    assert len(list(state_of(optimizer))) == (3 if fused else 2) * len(model.trained)


def test_a_deterministic_run_is_the_same_on_a_cpu(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operation of scoring and update has a deterministic form; drawing and what comes later are left alone."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")  # now it is put back at the end
    seen: dict[str, set[bool]] = {"score_policy": set(), "update": set()}

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*read: Any, **asked: Any) -> Any:
            seen[name].add(torch.are_deterministic_algorithms_enabled())
            return real(*read, **asked)

        return call

    for name in seen:
        monkeypatch.setattr(trainer, name, noted(name, getattr(trainer, name)))
    folder = tiny.run(tmp_path / "run", *tiny.every(), "train.deterministic=true")
    assert seen == {"score_policy": {True}, "update": {True}}
    assert not torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert tiny.metrics(folder) == tiny.metrics(trained)
