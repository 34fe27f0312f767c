"""A tiny Qwen3 twice: from transformers, whole, and from megatron-core, this rank's part of the same weights."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FEED = 48, 32, 2, 4, 2, 16, 40


def whole_model() -> Any:
    """The reference."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD, intermediate_size=FEED, max_position_embeddings=128,
        rms_norm_eps=1e-6, tie_word_embeddings=False, rope_theta=1e4, attn_implementation="eager",
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


class PackedAttention(torch.nn.Module):
    """Causal attention that keeps packed sequences apart; megatron-core's own on CPU knows no packing."""

    def __init__(self, config: Any, **kwargs: Any) -> None:
        super().__init__()
        self.scale = config.kv_channels**-0.5

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        packed = kwargs.get("packed_seq_params")
        if packed is None:
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            return self._attend(q, k, v).permute(2, 0, 1, 3).flatten(2)
        out = torch.zeros_like(query)
        starts = packed.cu_seqlens_q_padded.tolist()
        for begin, end in itertools.pairwise(starts):
            q, k, v = (x[begin:end].transpose(0, 1) for x in (query, key, value))
            out[begin:end] = self._attend(q, k, v).transpose(0, 1)
        return out.flatten(1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        repeat = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(repeat, -3), v.repeat_interleave(repeat, -3)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)


def parallel_model(tensor: int, pipeline: int, *, padded_vocabulary: int = VOCABULARY, sequence: bool = False) -> Any:
    """This rank's part, without optimizer and without a data-parallel wrapper: how a teacher is built."""
    from megatron.core import parallel_state as state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=KV_HEADS,
        kv_channels=HEAD, ffn_hidden_size=FEED, normalization="RMSNorm", layernorm_epsilon=1e-6,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        add_qkv_bias=False, qk_layernorm=True, hidden_dropout=0.0, attention_dropout=0.0,
        use_cpu_initialization=True, perform_initialization=False, tensor_model_parallel_size=tensor,
        sequence_parallel=sequence,
        pipeline_model_parallel_size=pipeline, pipeline_dtype=torch.float32, params_dtype=torch.float32,
        bias_activation_fusion=False, masked_softmax_fusion=False, bias_dropout_fusion=False,
        apply_rope_fusion=False, gradient_accumulation_fusion=False, persist_layer_norm=False,
        batch_p2p_comm=True, batch_p2p_sync=False, variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    model = GPTModel(
        config=config, transformer_layer_spec=spec, vocab_size=padded_vocabulary, max_sequence_length=128,
        pre_process=state.is_pipeline_first_stage(), post_process=state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False, position_embedding_type="rope", rotary_base=10000,
        parallel_output=True,
    )  # fmt: skip
    _load(model, whole_model().state_dict(), tensor, pipeline, padded_vocabulary)
    return model.eval()


def _load(  # noqa: C901 - one branch a parameter
    model: Any, whole: dict[str, Tensor], tensor: int, pipeline: int, padded_vocabulary: int
) -> None:
    from megatron.core import parallel_state as state

    rank = state.get_tensor_model_parallel_rank()
    first = state.get_pipeline_model_parallel_rank() * (LAYERS // pipeline)

    def part(value: Tensor, dim: int) -> Tensor:
        return value.chunk(tensor, dim)[rank]

    def vocabulary(value: Tensor) -> Tensor:
        extra = torch.full((padded_vocabulary - VOCABULARY, HIDDEN), 0.5)
        return part(torch.cat((value, extra)), 0)

    def of_layer(name: str) -> Tensor:
        _, _, index, *rest = name.split(".")
        old, kind = f"model.layers.{int(index) + first}.", ".".join(rest)
        if kind == "self_attention.linear_qkv.weight":
            q, k, v = (whole[f"{old}self_attn.{x}_proj.weight"] for x in "qkv")
            groups = (q.view(KV_HEADS, -1, HIDDEN), k.view(KV_HEADS, HEAD, HIDDEN), v.view(KV_HEADS, HEAD, HIDDEN))
            return part(torch.cat(groups, 1).reshape(-1, HIDDEN), 0)
        if kind == "mlp.linear_fc1.weight":
            gate, up = (part(whole[f"{old}mlp.{x}_proj.weight"], 0) for x in ("gate", "up"))
            return torch.cat((gate, up))
        if kind == "self_attention.linear_proj.weight":
            return part(whole[f"{old}self_attn.o_proj.weight"], 1)
        if kind == "mlp.linear_fc2.weight":
            return part(whole[f"{old}mlp.down_proj.weight"], 1)
        return whole[old + NORMS[kind]]

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "embedding.word_embeddings.weight":
                parameter.copy_(vocabulary(whole["model.embed_tokens.weight"]))
            elif name == "output_layer.weight":
                parameter.copy_(vocabulary(whole["lm_head.weight"]))
            elif name == "decoder.final_layernorm.weight":
                parameter.copy_(whole["model.norm.weight"])
            else:
                parameter.copy_(of_layer(name))


NORMS = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
