"""Scores tokens with megatron-core on the CPU: one rank over gloo, float32.

Megatron's GPT model is built here from a Qwen3 folder, which gives the same numbers on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: Last parts of Megatron's names -> of the Hugging Face names, for what is copied as it is.
_COPIED = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
_WHOLE = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
}


@torch.no_grad()
def score_on_cpu(model: str, prompts: Sequence[Sequence[int]], whole: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """[N] log-probability and entropy of the responses' tokens. To be called in a process of its own.

    Args:
        model: a Qwen3 folder.
        prompts: token ids of each prompt.
        whole: token ids of each prompt with its response.
    """
    from nemo_uecr.checkpoint.on_cpu import core_on_cpu
    from nemo_uecr.scoring.dense import score_logits

    logp, entropy = [], []
    with core_on_cpu():
        module = _build(model)
        for prompt, ids in zip(prompts, whole, strict=True):
            ids_S, size = torch.tensor(ids), len(ids)
            future_SS = torch.triu(torch.ones(1, 1, size, size, dtype=torch.bool), 1)
            logits_SV = module(ids_S[None], position_ids=torch.arange(size)[None], attention_mask=future_SS)[0]
            start = len(prompt)
            found = score_logits(logits_SV[start - 1 : -1], ids_S[start:], temperatures=(1.0,), entropy=True)
            assert found.entropy_N is not None
            logp.append(found.logp_KN[0])
            entropy.append(found.entropy_N)
    return torch.cat(logp), torch.cat(entropy)


def _build(folder: str) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    from transformers import AutoModelForCausalLM

    from nemo_uecr.data.models import load_pretrained, only_here

    whole = load_pretrained(
        AutoModelForCausalLM, folder, local_files_only=only_here(folder), dtype=torch.float32, use_safetensors=True
    )
    shape = whole.config
    rope = getattr(shape, "rope_parameters", None) or {"rope_theta": shape.rope_theta}
    config = TransformerConfig(
        num_layers=shape.num_hidden_layers, hidden_size=shape.hidden_size,
        num_attention_heads=shape.num_attention_heads, num_query_groups=shape.num_key_value_heads,
        kv_channels=shape.head_dim, ffn_hidden_size=shape.intermediate_size, normalization="RMSNorm",
        layernorm_epsilon=shape.rms_norm_eps, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, add_qkv_bias=False, qk_layernorm=True, hidden_dropout=0.0, attention_dropout=0.0,
        use_cpu_initialization=True, perform_initialization=False, params_dtype=torch.float32,
        bias_activation_fusion=False, masked_softmax_fusion=False, bias_dropout_fusion=False, apply_rope_fusion=False,
        gradient_accumulation_fusion=False, persist_layer_norm=False,
    )  # fmt: skip
    model = GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
        vocab_size=shape.vocab_size, max_sequence_length=shape.max_position_embeddings,
        share_embeddings_and_output_weights=shape.tie_word_embeddings, position_embedding_type="rope",
        rotary_base=rope["rope_theta"], parallel_output=True,
    )  # fmt: skip
    state = whole.state_dict()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_weight(name, state, shape))
    return model.eval()


def _weight(name: str, state: Mapping[str, Tensor], shape: Any) -> Tensor:
    """One of Megatron's weights from the Hugging Face ones: fused queries by group, gate before up."""
    if name in _WHOLE:
        return state[_WHOLE[name]]
    _, _, layer, kind = name.split(".", 3)
    prefix = f"model.layers.{layer}."
    if kind == "self_attention.linear_qkv.weight":
        groups = shape.num_key_value_heads
        whole = [state[f"{prefix}self_attn.{each}_proj.weight"] for each in "qkv"]
        return torch.cat([each.reshape(groups, -1, each.shape[1]) for each in whole], dim=1).flatten(0, 1)
    if kind == "mlp.linear_fc1.weight":
        return torch.cat([state[f"{prefix}mlp.{each}_proj.weight"] for each in ("gate", "up")])
    return state[prefix + _COPIED[kind]]
