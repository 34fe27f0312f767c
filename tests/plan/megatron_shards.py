"""Builds every rank's part of a tiny model in megatron-core, one after another in one process, and prints its sizes.

The process group is torch's fake one: groups exist and know their ranks, no collective moves anything. That is enough
to build modules, gradient buffers and the distributed optimizer's shards.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from tests.plan.subjects import TINY


def build(tensor: int, pipeline: int, *, tied: bool) -> Any:
    """This rank's module in bfloat16."""
    from megatron.core import parallel_state as state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=TINY["layers"], hidden_size=TINY["hidden"], num_attention_heads=TINY["heads"],
        num_query_groups=TINY["kv_heads"], kv_channels=TINY["head_dim"], ffn_hidden_size=TINY["feed_forward"],
        normalization="RMSNorm", gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, qk_layernorm=True, use_cpu_initialization=True, perform_initialization=False,
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline, pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16, bf16=True, gradient_accumulation_fusion=False, persist_layer_norm=False,
        bias_activation_fusion=False, masked_softmax_fusion=False, bias_dropout_fusion=False, apply_rope_fusion=False,
    )  # fmt: skip
    return GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
        vocab_size=TINY["vocabulary"], max_sequence_length=64, pre_process=state.is_pipeline_first_stage(),
        post_process=state.is_pipeline_last_stage(), share_embeddings_and_output_weights=tied,
        position_embedding_type="rope",
    )  # fmt: skip


def optimizer_bytes(model: Any) -> dict[str, int]:
    """Gradient buffers of Megatron's DDP, and all tensors that its distributed optimizer holds for this rank."""
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


def measure(tensor: int, pipeline: int, data: int, *, tied: bool, optimizer: bool) -> list[dict[str, int]]:
    """Sizes of every rank."""
    from megatron.core import parallel_state as state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    found = []
    world = tensor * pipeline * data
    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        state.initialize_model_parallel(tensor, pipeline, create_gloo_process_groups=False)
        model = build(tensor, pipeline, tied=tied)
        sizes = {
            "pipeline": state.get_pipeline_model_parallel_rank(),
            "tensor": state.get_tensor_model_parallel_rank(),
            "data": state.get_data_parallel_rank(),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "layers": len(model.decoder.layers),
        }
        if optimizer:
            sizes |= optimizer_bytes(model)
        found.append(sizes)
        state.destroy_model_parallel()
        dist.destroy_process_group()
    return found


if __name__ == "__main__":
    from tests.nemo.cpu import allow_cpu

    allow_cpu()
    sys.stdout.write(json.dumps([measure(**case) for case in json.loads(sys.argv[1])]))
