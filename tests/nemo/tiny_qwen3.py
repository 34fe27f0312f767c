"""A tiny Qwen3 twice: from transformers, whole, and from megatron-core, this rank's part of it; dense or a mixture."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nemo_uecr.conversion import on_cpu

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FEED, ROPE = 48, 32, 2, 4, 2, 16, 40, 1_000_000
#: Of the mixture: experts of each layer, those of a token, and their width.
EXPERTS, CHOSEN, EXPERT_FEED = 4, 2, 24


def hf_config(*, tied: bool) -> dict[str, Any]:
    """The architecture in the words of a Hugging Face config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "intermediate_size": FEED, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "attention_bias": False, "tie_word_embeddings": tied, "rope_theta": float(ROPE), "torch_dtype": "float32",
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip


def mixture_config() -> dict[str, Any]:
    """Those of a mixture, as the hub's config.json has them."""
    return hf_config(tied=False) | {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN, "moe_intermediate_size": EXPERT_FEED, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip


def whole_model(*, mixture: bool = False) -> Any:
    """The reference."""
    import transformers

    torch.manual_seed(0)
    name, values = ("Qwen3Moe", mixture_config()) if mixture else ("Qwen3", hf_config(tied=False))
    config = getattr(transformers, f"{name}Config")(**values, attn_implementation="eager")
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():  # a router that is flat would choose by rounding
            parameter.add_(torch.randn_like(parameter) * (0.5 if key.endswith("mlp.gate.weight") else 0.1))
    return model


def start(tensor: int, pipeline: int, expert: int = 1) -> None:
    """Megatron on CPU in this rank's process."""
    allow_cpu()
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(
        tensor, pipeline, expert_model_parallel_size=expert, expert_tensor_parallel_size=1
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)


#: Never left.
KEPT = contextlib.ExitStack()


class Moves(TorchFunctionMode):
    """``tensor.to("cuda")`` and ``tensor.type()``, which a conversion never calls: as on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to:
            args = (args[0], *("cpu" if str(value).startswith("cuda") else value for value in args[1:]))
        found = func(*args, **(kwargs or {}))
        if func is torch.Tensor.type and isinstance(found, str):
            found = found.replace("torch.", "torch.cuda.")  # Megatron's optimizer asks for it
        return found


def plain_norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **options: Any) -> torch.nn.Module:
    """An RMSNorm whose weight is marked for the reduction over sequence-parallel ranks; Megatron's refuses these."""
    norm = torch.nn.RMSNorm(hidden_size, eps=eps)
    norm.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def allow_cpu() -> None:
    """Patch torch and megatron-core in this process; call it in a process of its own."""
    replaced = on_cpu._replacements()
    del replaced["set_device"]  # torch's compiler refuses two names for one function
    for name, value in (replaced | {"memory_allocated": lambda *args, **kwargs: 0}).items():
        setattr(torch.cuda, name, value)
    torch.nn.Module.cuda = lambda module, device=None: module  # type: ignore[method-assign]
    KEPT.enter_context(on_cpu._cpu_mode())
    KEPT.enter_context(Moves())
    KEPT.enter_context(on_cpu._random_states())
    KEPT.enter_context(on_cpu._experts())
    from megatron.core.transformer import torch_norm

    torch_norm.WrappedTorchNorm.__new__ = plain_norm


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


def make_model(
    tensor: int,
    pipeline: int,
    *,
    tied: bool = False,
    padded: int = VOCABULARY,
    sequence: bool = False,
    layers: int = LAYERS,
    dtype: torch.dtype = torch.float32,
    expert: int = 0,
) -> Any:
    """This rank's part, initialised by Megatron itself, without optimizer and without a data-parallel wrapper.

    With ``expert`` ranks, of the mixture, whose router is what NeMo-RL makes of it.
    """
    from megatron.core import parallel_state as state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts: dict[str, Any] = {}
    if expert:
        experts = {
            "num_moe_experts": EXPERTS, "moe_router_topk": CHOSEN, "moe_ffn_hidden_size": EXPERT_FEED,
            "expert_model_parallel_size": expert, "expert_tensor_parallel_size": 1, "moe_router_dtype": "fp64",
            "moe_router_load_balancing_type": "none", "moe_grouped_gemm": False, "moe_permute_fusion": False,
        }  # fmt: skip
    config = TransformerConfig(
        num_layers=layers, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=KV_HEADS,
        kv_channels=HEAD, ffn_hidden_size=FEED, normalization="RMSNorm", layernorm_epsilon=1e-6,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        add_qkv_bias=False, qk_layernorm=True, hidden_dropout=0.0, attention_dropout=0.0, init_method_std=0.2,
        use_cpu_initialization=True, tensor_model_parallel_size=tensor, sequence_parallel=sequence,
        pipeline_model_parallel_size=pipeline, pipeline_dtype=dtype, params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        bias_activation_fusion=False, masked_softmax_fusion=False, bias_dropout_fusion=False,
        apply_rope_fusion=False, gradient_accumulation_fusion=False, persist_layer_norm=False,
        batch_p2p_comm=True, batch_p2p_sync=False, variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall", attention_softmax_in_fp32=True, **experts,
    )  # fmt: skip
    count = {"num_experts": EXPERTS, "moe_grouped_gemm": False} if expert else {}
    spec = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm", **count)
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    return GPTModel(
        config=config, transformer_layer_spec=spec, vocab_size=padded, max_sequence_length=128,
        pre_process=state.is_pipeline_first_stage(), post_process=state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=tied, position_embedding_type="rope", rotary_base=ROPE,
        parallel_output=True,
    )  # fmt: skip


def parallel_model(
    tensor: int, pipeline: int, *, padded: int = VOCABULARY, sequence: bool = False, expert: int = 0
) -> Any:
    """This rank's part of the reference; with ``expert`` ranks, of the mixture."""
    from megatron.core import parallel_state as state

    model = make_model(tensor, pipeline, padded=padded, sequence=sequence, expert=expert)
    whole = whole_model(mixture=bool(expert)).state_dict()
    rank = state.get_tensor_model_parallel_rank()
    first = state.get_pipeline_model_parallel_rank() * (LAYERS // pipeline)

    def part(value: Tensor, dim: int) -> Tensor:
        return value.chunk(tensor, dim)[rank]

    def vocabulary(value: Tensor) -> Tensor:
        return part(torch.cat((value, torch.full((padded - VOCABULARY, HIDDEN), 0.5))), 0)

    found = {
        "embedding.word_embeddings.weight": vocabulary(whole["model.embed_tokens.weight"]),
        "output_layer.weight": vocabulary(whole["lm_head.weight"]),
        "decoder.final_layernorm.weight": whole["model.norm.weight"],
    }
    for layer in range(LAYERS // pipeline):
        new, old = f"decoder.layers.{layer}.", f"model.layers.{first + layer}."
        q, k, v = (whole[f"{old}self_attn.{x}_proj.weight"] for x in "qkv")
        groups = (q.view(KV_HEADS, -1, HIDDEN), k.view(KV_HEADS, HEAD, HIDDEN), v.view(KV_HEADS, HEAD, HIDDEN))
        found |= {
            f"{new}self_attention.linear_qkv.weight": part(torch.cat(groups, 1).reshape(-1, HIDDEN), 0),
            f"{new}self_attention.linear_proj.weight": part(whole[f"{old}self_attn.o_proj.weight"], 1),
            **{f"{new}{name}.weight": whole[f"{old}{theirs}.weight"] for name, theirs in NORMS.items()},
        }
        if expert:
            found[f"{new}mlp.router.weight"] = whole[f"{old}mlp.gate.weight"]
            here = EXPERTS // expert
            for place in range(here):  # transformers keeps all experts of a layer in two tensors
                one = state.get_expert_model_parallel_rank() * here + place
                at = f"{new}mlp.experts.local_experts.{place}."
                found[f"{at}linear_fc1.weight"] = whole[f"{old}mlp.experts.gate_up_proj"][one]
                found[f"{at}linear_fc2.weight"] = whole[f"{old}mlp.experts.down_proj"][one]
            continue
        gate, up = (part(whole[f"{old}mlp.{x}_proj.weight"], 0) for x in ("gate", "up"))
        found |= {
            f"{new}mlp.linear_fc1.weight": torch.cat((gate, up)),
            f"{new}mlp.linear_fc2.weight": part(whole[f"{old}mlp.down_proj.weight"], 1),
        }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found[name])
    return model.eval()


NORMS = {
    "input_layernorm": "input_layernorm", "pre_mlp_layernorm": "post_attention_layernorm",
    "self_attention.q_layernorm": "self_attn.q_norm", "self_attention.k_layernorm": "self_attn.k_norm",
}  # fmt: skip
