"""What each rank does in the tests with real megatron-core."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.nemo.worker_scoring import (
    Columns,
    MicroBatch,
    ModelParallel,
    ScoreRequest,
    score_columns,
    score_tokens,
)
from tests.nemo import tiny_qwen3

ROWS, WIDTH, MICRO = 6, 12, 2
TEMPERATURES = {"rollout_logp": 0.7, "logp": 1.0}


def batch() -> dict[str, Tensor]:
    """Ragged rows."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.tensor([12, 5, 9, 2, 12, 7])
    return {"input_ids": torch.randint(0, 48, (ROWS, WIDTH), generator=generator), "input_lengths": lengths}


def padded_rows(data: Mapping[str, Tensor]) -> MicroBatch:
    """Rows of one width are packed ones, each padded to it."""
    rows, width = data["input_ids"].shape
    return MicroBatch(data["input_ids"], data["input_lengths"], torch.arange(rows + 1) * width)


def reference(*, mixture: bool = False) -> dict[str, Tensor]:
    """Scores of the whole model by the definition."""
    data = batch()
    with torch.no_grad():
        logits = tiny_qwen3.whole_model(mixture=mixture)(input_ids=data["input_ids"]).logits
    request = ScoreRequest(TEMPERATURES, True, tiny_qwen3.VOCABULARY, 100)
    return score_columns(logits, padded_rows(data), request, ModelParallel(None, None))


def assert_same(answer: dict[str, Any], expected: dict[str, Tensor], *, tolerance: float) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(answer[name], value, atol=tolerance, rtol=0)
    assert float(expected["entropy"].max()) > 0.5, "a flat zero would agree with anything"


class MegatronMicroBatches:
    """megatron-core's own schedule over a model and padded rows; the packed ones of NeMo-RL are in nemo/inside."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, data: Mapping[str, Any], columns: Columns) -> list[dict[str, Tensor]]:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        starts = range(0, len(data["input_ids"]), MICRO)
        parts = [{name: value[start : start + MICRO] for name, value in data.items()} for start in starts]

        def step(iterator: Iterator[dict[str, Tensor]], model: Any) -> Any:
            micro = padded_rows(next(iterator))

            def finish(logits: Tensor) -> Any:
                return torch.zeros(()), columns(logits, micro)

            positions = torch.arange(WIDTH).expand_as(micro.ids_BS)
            mask = torch.triu(torch.ones(1, 1, WIDTH, WIDTH, dtype=torch.bool), 1)
            return model(input_ids=micro.ids_BS, position_ids=positions, attention_mask=mask), finish

        found: list[Any] = get_forward_backward_func()(
            forward_step_func=step, data_iterator=iter(parts), model=[self.model], num_microbatches=len(parts),
            seq_length=WIDTH, micro_batch_size=MICRO, decoder_seq_length=WIDTH, forward_only=True,
        )  # fmt: skip
        return found


def score_batch(model: Any, tensor: int, *, temperatures: Mapping[str, float]) -> Any:
    """One scoring pass of a model that is cut over the ranks, of a data rank's rows; None on stages before the last."""
    from megatron.core import parallel_state

    group = parallel_state.get_tensor_model_parallel_group() if tensor > 1 else None
    request = ScoreRequest(temperatures, True, tiny_qwen3.VOCABULARY, 5)
    return score_tokens(MegatronMicroBatches(model), rows_of_this_rank(), request, ModelParallel(group, None))


def rows_of_this_rank() -> dict[str, Tensor]:
    """This data-parallel rank's part of the batch."""
    from megatron.core import parallel_state

    size, place = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    return {name: value.chunk(size)[place] for name, value in batch().items()}


def score_with_megatron(rank: int, *, tensor: int, pipeline: int, padded: int) -> Any:
    """The scores of the tiny Qwen3."""
    tiny_qwen3.start(tensor, pipeline)
    model = tiny_qwen3.parallel_model(tensor, pipeline, padded=padded)
    return score_batch(model, tensor, temperatures=TEMPERATURES)


def mixture(rank: int, *, tensor: int, expert: int) -> dict[str, Any]:
    """What the tiny mixture does on these ranks: one process, because its imports take longer than all of it.

    The bytes around an offload, the scores and parameters of this rank, and, without tensor ranks, its weights after a
    step.
    """
    tiny_qwen3.start(tensor, 1, expert)
    found: dict[str, Any] = {"bytes": bytes_around_an_offload(tensor, (1024,), expert)}
    model = tiny_qwen3.parallel_model(tensor, 1, sequence=tensor > 1, expert=expert)
    found["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    found["scores"] = score_batch(model, tensor, temperatures=TEMPERATURES)
    return found | ({"trained": trained_mixture(expert)} if tensor == 1 else {})


def trained_mixture(expert: int) -> dict[str, Tensor]:
    """This rank's weights after a step of Megatron's distributed Adam over its rows, with the router frozen.

    Experts have their number in the whole model, not on the rank.
    """
    import torch.distributed as dist
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func

    model = tiny_qwen3.parallel_model(1, 1, expert=expert).train()
    for layer in model.decoder.layers:
        layer.mlp.router.weight.requires_grad = False
    options = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    wrapped = DistributedDataParallel(model.config, options, model)
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-3, use_distributed_optimizer=True, params_dtype=torch.float32
    )  # fmt: skip
    optimizer = get_megatron_optimizer(settings, [wrapped])
    model.config.finalize_model_grads_func = finalize_model_grads
    wrapped.zero_grad_buffer()
    optimizer.zero_grad()
    ids = rows_of_this_rank()["input_ids"]

    def step(iterator: Iterator[Tensor], module: Any) -> Any:
        own = next(iterator)
        mask = torch.triu(torch.ones(1, 1, WIDTH, WIDTH, dtype=torch.bool), 1)
        logits = module(input_ids=own, position_ids=torch.arange(WIDTH).expand_as(own), attention_mask=mask)

        def loss(logits: Tensor) -> Any:
            value = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), own[:, 1:].flatten())
            return value, {}

        return logits, loss

    get_forward_backward_func()(
        forward_step_func=step, data_iterator=iter([ids]), model=[wrapped], num_microbatches=1, seq_length=WIDTH,
        micro_batch_size=len(ids), decoder_seq_length=WIDTH, forward_only=False,
    )  # fmt: skip
    optimizer.step()
    found, here = {}, tiny_qwen3.EXPERTS // expert
    for name, parameter in model.named_parameters():
        before, inside, after = name.partition(".local_experts.")
        place, _, rest = after.partition(".")
        if inside:
            name = f"{before}{inside}{int(place) + here * (dist.get_rank() % expert)}.{rest}"
        found[name] = parameter.detach().clone()
    return found


def score_wider_teacher(rank: int, *, columns: int) -> Any:
    """The tiny Qwen3 on two tensor ranks, cut to a student with fewer columns."""
    from megatron.core import parallel_state

    tiny_qwen3.start(2, 1)
    request = ScoreRequest({"logp": 1.0}, True, columns, 5).to_teacher(tiny_qwen3.VOCABULARY)
    data = batch()
    data["input_ids"] %= columns
    group = parallel_state.get_tensor_model_parallel_group()
    forward = MegatronMicroBatches(tiny_qwen3.parallel_model(2, 1))
    return score_tokens(forward, data, request, ModelParallel(group, None))


def score_context_parallel(rank: int, *, pieces: int) -> dict[str, Tensor]:
    """Packed logits cut over context-parallel ranks: pieces r and 2 world - 1 - r of every sequence."""
    import torch.distributed as dist

    data = batch()
    logits = context_logits()
    local, starts = [], [0]
    for row, length in enumerate(data["input_lengths"].tolist()):
        whole = length + -length % (2 * pieces)
        padded = torch.full((whole, logits.shape[2]), 30.0)
        padded[:length] = logits[row, :length]
        cut = padded.chunk(2 * pieces)
        local += [cut[rank], cut[2 * pieces - 1 - rank]]
        starts.append(starts[-1] + whole)
    micro = MicroBatch(data["input_ids"], data["input_lengths"], torch.tensor(starts, dtype=torch.int32))
    request = ScoreRequest(TEMPERATURES, True, logits.shape[2], 5)
    return score_columns(torch.cat(local)[None], micro, request, ModelParallel(None, dist.group.WORLD))


def context_logits() -> Tensor:
    """[B, S, V] logits that every rank can make."""
    return torch.randn(ROWS, WIDTH, 48, generator=torch.Generator().manual_seed(1)) * 2


def offload_after_forwards(rank: int, *, tensor: int, lengths: tuple[int, ...]) -> dict[str, int]:
    """Bytes around the offload of a dense model."""
    tiny_qwen3.start(tensor, 1)
    return bytes_around_an_offload(tensor, lengths, expert=0)


def bytes_around_an_offload(tensor: int, lengths: tuple[int, ...], expert: int) -> dict[str, int]:
    """Bytes of a tiny Qwen3 of Megatron's around its offload, sequence-parallel where there are tensor ranks.

    With ``expert`` ranks, of the mixture.

    The CPU plays the GPU: what counts is every byte but those of the host copy.
    """
    from nemo_uecr.nemo.megatron_worker import WorkerMethods

    worker: Any = SimpleNamespace(_host_copy=[])

    def on_gpu() -> int:
        gc.collect()
        tensors = [found for found in gc.get_objects() if isinstance(found, Tensor) and found.device.type == "cpu"]
        sizes = {found.untyped_storage().data_ptr(): found.untyped_storage().nbytes() for found in tensors}
        return sum(sizes.values()) - sum(
            sizes[at] for at in {copy.untyped_storage().data_ptr() for copy in worker._host_copy}
        )

    tiny_qwen3.whole_model(mixture=bool(expert))  # what transformers keeps of it is none of Megatron's
    before = on_gpu()
    model = tiny_qwen3.parallel_model(tensor, 1, sequence=tensor > 1, expert=expert)
    loaded = on_gpu()
    for length in lengths:
        inputs = {"input_ids": torch.zeros(1, length, dtype=torch.long), "position_ids": torch.arange(length)[None]}
        mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), 1)
        with torch.no_grad():
            model(**inputs, attention_mask=mask)
    del inputs, mask
    scored = on_gpu()
    WorkerMethods.move_model(worker, model, "cpu")
    return {"before": before, "loaded": loaded, "scored": scored, "off": on_gpu()}


def weights_after_an_update(rank: int, *, overlap: dict[str, bool]) -> tuple[float, Tensor]:
    """The share of weights that an optimizer step of Megatron's has changed, and the weights, as a refit reads them.

    ``overlap`` are the settings of the data-parallel wrapper that say what overlaps with what.
    """
    tiny_qwen3.start(1, 1)
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig

    precision: Any = {"bf16": True, "params_dtype": torch.bfloat16}
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, **precision)
    wrapper = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True, **overlap)
    gather = overlap["overlap_param_gather"]
    settings = OptimizerConfig(
        optimizer="adam", lr=1e-2, use_distributed_optimizer=True, overlap_param_gather=gather, **precision
    )
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).bfloat16()
    model = DistributedDataParallel(config, wrapper, layers)
    optimizer = get_megatron_optimizer(settings, [model])

    def weights() -> Tensor:
        return torch.cat([parameter.detach().float().flatten() for parameter in layers.parameters()])

    before = weights()
    model.zero_grad_buffer()
    optimizer.zero_grad()
    model(torch.randn(4, 64, dtype=torch.bfloat16)).float().square().mean().backward()
    model.finish_grad_sync()
    optimizer.step()
    return float((weights() != before).float().mean()), weights()
