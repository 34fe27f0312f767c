"""One rank of a tiny Qwen3 in megatron-core over gloo, scored through Megatron's own schedule.

Run by `test_megatron.py`, as `megatron_worker.py --tp T --pp P [--sp]` with torchrun's variables in the
environment. The last pipeline stage writes one JSON line: the largest difference from Hugging Face's scores.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from nemo_uecr.scoring.dense import score_logits
from nemo_uecr.scoring.fused_linear import score_hidden
from nemo_uecr.scoring.records import TokenScores, VocabShard
from tests.nemo_backend.cpu import allow_cpu

VOCAB, PADDED, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FEED = 131, 132, 64, 4, 4, 2, 16, 96
BATCH, LENGTH, MICRO_BATCHES = 2, 16, 3
TEMPERATURES = (1.0, 0.7)


def reference_model(tied: bool) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=FEED,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tied,
        rope_theta=1e6,
        attn_implementation="eager",
    )
    model = Qwen3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.1)
    return model


def megatron_model(arguments: argparse.Namespace, tied: bool) -> GPTModel:
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_query_groups=KV_HEADS,
        kv_channels=HEAD_DIM,
        ffn_hidden_size=FEED,
        normalization="RMSNorm",
        layernorm_epsilon=1e-6,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        qk_layernorm=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        perform_initialization=False,
        tensor_model_parallel_size=arguments.tp,
        pipeline_model_parallel_size=arguments.pp,
        sequence_parallel=arguments.sp,
        pipeline_dtype=torch.float32,
        params_dtype=torch.float32,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        batch_p2p_comm=True,
        batch_p2p_sync=False,
    )
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
        vocab_size=PADDED,
        max_sequence_length=64,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=tied,
        position_embedding_type="rope",
        rotary_base=1_000_000,
        parallel_output=True,
    )


def fused_qkv(weights: dict[str, Tensor], layer: str) -> Tensor:
    """Query, key and value rows, interleaved by key-value group."""
    q, k, v = (weights[f"{layer}self_attn.{part}_proj.weight"] for part in "qkv")
    groups = (part.reshape(KV_HEADS, -1, HIDDEN) for part in (q, k, v))
    return torch.cat(tuple(groups), 1).reshape(-1, HIDDEN)


def padded_rows(weight: Tensor) -> Tensor:
    """The padding rows hold numbers that would be seen if they were counted."""
    return torch.cat([weight, torch.full((PADDED - VOCAB, HIDDEN), 3.0)])


def shard_of(name: str, weights: dict[str, Tensor], tied: bool) -> Tensor:
    size, rank = (f() for f in (parallel_state.get_tensor_model_parallel_world_size, tensor_rank))
    embedding = padded_rows(weights["model.embed_tokens.weight"])
    if name == "embedding.word_embeddings.weight" or (name == "output_layer.weight" and tied):
        return embedding.chunk(size)[rank]
    if name == "output_layer.weight":
        return padded_rows(weights["lm_head.weight"]).chunk(size)[rank]
    if name == "decoder.final_layernorm.weight":
        return weights["model.norm.weight"]
    _, _, number, part = name.split(".", 3)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    layer = f"model.layers.{int(number) + stage * LAYERS // stages}."
    whole = {
        "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
        "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    }
    if part in whole:
        return weights[layer + whole[part]]
    if part == "self_attention.linear_qkv.weight":
        return fused_qkv(weights, layer).chunk(size)[rank]
    if part == "mlp.linear_fc1.weight":
        halves = (weights[f"{layer}mlp.{half}_proj.weight"].chunk(size)[rank] for half in ("gate", "up"))
        return torch.cat(tuple(halves))
    across = {"self_attention.linear_proj.weight": "self_attn.o_proj", "mlp.linear_fc2.weight": "mlp.down_proj"}
    return weights[f"{layer}{across[part]}.weight"].chunk(size, 1)[rank]


def tensor_rank() -> int:
    return int(parallel_state.get_tensor_model_parallel_rank())


def scores_of_run(model: GPTModel, data: Tensor, sequence_parallel: bool) -> dict[str, list[TokenScores]]:
    """Both forms of scoring inside one forward-only run of Megatron's schedule."""
    found: dict[str, list[TokenScores]] = {"logits": [], "hidden": []}
    group = parallel_state.get_tensor_model_parallel_group()
    captured: list[Tensor] = []
    if model.post_process:
        model.output_layer.register_forward_pre_hook(lambda module, inputs: captured.append(inputs[0].detach()))
    options: dict[str, Any] = {"temperatures": TEMPERATURES, "entropy": True, "valid_vocab": VOCAB}

    def forward_step(batches: Any, stage: GPTModel) -> Any:
        tokens = next(batches)
        inputs, target = tokens[:, :-1].contiguous(), tokens[:, 1:]
        position = torch.arange(LENGTH).expand(BATCH, LENGTH)
        mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
        output = stage(inputs, position, mask)

        def collect(logits_BSV: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            columns = logits_BSV.shape[-1]
            own = options | {"shard": VocabShard(tensor_rank() * columns, group)}
            found["logits"].append(score_logits(logits_BSV.reshape(-1, columns), target.flatten(), **own))
            hidden_SBH = captured.pop()
            if sequence_parallel:
                hidden_SBH = tensor_parallel.gather_from_sequence_parallel_region(hidden_SBH)
            tied = model.share_embeddings_and_output_weights
            weight = model.shared_embedding_or_output_weight() if tied else model.output_layer.weight
            hidden_NH = hidden_SBH.transpose(0, 1).reshape(-1, HIDDEN)
            found["hidden"].append(score_hidden(hidden_NH, weight.detach(), target.flatten(), **own))
            return torch.zeros(()), {}

        return output, collect

    with torch.no_grad():
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter(data),
            model=[model],
            num_microbatches=MICRO_BATCHES,
            seq_length=LENGTH,
            micro_batch_size=BATCH,
            forward_only=True,
        )
    return found


def largest_difference(found: list[TokenScores], model: Qwen3ForCausalLM, data: Tensor) -> float:
    worst = 0.0
    for scores, tokens in zip(found, data, strict=True):
        with torch.no_grad():
            logits = model(input_ids=tokens[:, :-1]).logits.double().reshape(-1, VOCAB)
        target = tokens[:, 1:].reshape(-1, 1)
        for row, temperature in enumerate(TEMPERATURES):
            logp = torch.log_softmax(logits / temperature, -1).gather(1, target)[:, 0]
            worst = max(worst, float((scores.logp_KN[row] - logp).abs().max()))
        log_p = torch.log_softmax(logits, -1)
        assert scores.entropy_N is not None
        worst = max(worst, float((scores.entropy_N + (log_p.exp() * log_p).sum(-1)).abs().max()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--pp", type=int, required=True)
    parser.add_argument("--sp", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    allow_cpu()
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(arguments.tp, arguments.pp)
    tensor_parallel.model_parallel_cuda_manual_seed(123)
    data = torch.randint(0, VOCAB, (MICRO_BATCHES, BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(7))
    worst: dict[str, float] = {}
    for tied in (False, True):
        reference = reference_model(tied)
        weights = {name: weight.detach() for name, weight in reference.state_dict().items()}
        model = megatron_model(arguments, tied).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(shard_of(name, weights, tied))
        found = scores_of_run(model, data, arguments.sp)
        if model.post_process:
            for kind, scores in found.items():
                assert len(scores) == MICRO_BATCHES
                worst[f"{kind} {'tied' if tied else 'untied'}"] = largest_difference(scores, reference, data)
    if worst:
        sys.stdout.write(json.dumps(worst) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
