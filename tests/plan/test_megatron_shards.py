"""Parameters, gradients and optimizer state of every rank against megatron-core's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nemo.ranks import run_ranks
from tests.nemo.tiny_qwen3 import allow_cpu, make_model
from tests.plan.subjects import TINY, split, tiny_shape

pytestmark = pytest.mark.slow  # half a minute of imports and builds
WORLD = 8
#: Tensor and pipeline ranks, whether the output layer is tied, whether an optimizer is built.
CASES = [
    (1, 1, True, True), (1, 1, False, False), (2, 1, False, True), (1, 2, True, True), (2, 2, True, False),
    (2, 4, False, False),
]  # fmt: skip
#: Megatron pads each gradient buffer so that every rank's part starts at a multiple of 64 values.
BUFFER_PADDING = 4 * 64 * 48


def measure(rank: int) -> list[dict[str, int]]:
    """Sizes of this rank's part of the tiny model, for each case."""
    import torch

    allow_cpu()
    from megatron.core import parallel_state as state

    found = []
    for tensor, pipeline, tied, optimizer in CASES:
        state.initialize_model_parallel(tensor, pipeline)
        model = make_model(tensor, pipeline, tied=tied, layers=TINY["layers"], dtype=torch.bfloat16)
        sizes = {
            "tensor": state.get_tensor_model_parallel_rank(),
            "data": state.get_data_parallel_rank(),
            "pipeline": state.get_pipeline_model_parallel_rank(),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "layers": len(model.decoder.layers),
        }
        found.append(sizes | (optimizer_bytes(model) if optimizer else {}))
        state.destroy_model_parallel()
    return found


def optimizer_bytes(model: Any) -> dict[str, int]:
    """Gradient buffers of Megatron's DDP, and all tensors that its distributed optimizer holds for this rank."""
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    options = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    wrapped = DistributedDataParallel(model.config, options, model)
    settings = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, use_distributed_optimizer=True)
    optimizer = get_megatron_optimizer(settings, [wrapped], use_gloo_process_groups=False)
    gradients = sum(buffer.grad_data.nbytes for buffer in wrapped.buffers)
    masters = moments = 0
    for one in optimizer.chained_optimizers:
        one.init_state_fn(one.optimizer, one.config)
        for group in one.optimizer.param_groups:
            masters += sum(parameter.nbytes for parameter in group["params"])
        for state in one.optimizer.state.values():
            moments += sum(value.nbytes for value in state.values() if torch.is_tensor(value) and value.dim() > 0)
    return {"gradients": gradients, "optimizer": masters + moments}


@pytest.fixture(scope="module")
def built() -> list[list[dict[str, int]]]:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    return run_ranks(WORLD, measure)


@pytest.mark.parametrize("index", range(len(CASES)), ids=map(str, CASES))
def test_every_rank_holds_what_is_planned(index: int, built: list[list[dict[str, int]]]) -> None:
    """Gradients: 4 bytes a parameter and the padding. Optimizer: 12 bytes a parameter over the data-parallel ranks.

    The plan counts 10: the precision-aware optimizer, which needs Transformer Engine and a GPU, leaves out the half of
    the float32 weights that the bfloat16 ones have.
    """
    tensor, pipeline, tied, optimizer = CASES[index]
    ranks, data = [each[index] for each in built], WORLD // (tensor * pipeline)
    model = split(tiny_shape(tied=tied), tensor, pipeline, data)
    for rank, found in enumerate(ranks):
        stage = found["pipeline"]
        assert model.place(rank) == (found["tensor"], 0, found["data"], stage)
        assert model.parameters(stage) == found["parameters"]
        assert len(model.layers(stage)) == found["layers"]
    for stage in range(pipeline) if optimizer else ():
        group = [found for found in ranks if found["pipeline"] == stage and found["tensor"] == 0]
        assert len(group) == data
        assert sum(found["optimizer"] for found in group) == 12 * model.parameters(stage)
        assert abs(group[0]["optimizer"] - 12 * model.optimizer_bytes(stage) / 10) <= 12 * 64
        assert 0 <= group[0]["gradients"] - 4 * model.parameters(stage) <= BUFFER_PADDING
