"""Megatron-Bridge's GPT model on one rank in float32, from either format; and the weight files to write."""

from __future__ import annotations

import contextlib
import functools
import json
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.conversion.reading import COMMON_FILE
from nemo_uecr.errors import CheckpointError, first_line
from nemo_uecr.generation.models import INDEX, SINGLE, let_others_read
from nemo_uecr.reproducible import installed

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.conversion.reading import Qwen3

#: Tensors of a layer of the Hugging Face model, but its feed-forward layer.
LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
    "self_attn.k_norm", "input_layernorm", "post_attention_layernorm",
)  # fmt: skip
#: Matrices of a feed-forward layer, or of one expert.
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
#: Norms that are not fused into the next layer, as they are with Transformer Engine; the bridge knows only those.
NORMS = {
    "decoder.layers.*.input_layernorm.weight": "model.layers.*.input_layernorm.weight",
    "decoder.layers.*.pre_mlp_layernorm.weight": "model.layers.*.post_attention_layernorm.weight",
}
#: The prefix of a norm that megatron-core's own layers save as a part of the next layer, and where they do.
OF_EXPERTS = "pre_mlp_layernorm."


class Bridge:
    """Megatron-Bridge for one Hugging Face folder; use it within `on_cpu.megatron_on_cpu`."""

    def __init__(self, folder: Path, model: Qwen3) -> None:
        """Read the folder's config.json; only `from_huggingface` needs weights."""
        from megatron.bridge import AutoBridge

        self._architecture = model
        self._auto = AutoBridge.from_hf_pretrained(str(folder), trust_remote_code=False)
        _name_the_norms()

    def from_megatron(self, weights: Path) -> Any:
        """The model with the weights of a distributed checkpoint of any tensor and pipeline parallelism."""
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing.core import CheckpointingException
        from torch.distributed.checkpoint.api import CheckpointException

        # Before 0.19, megatron-core raises an AttributeError where the file of the common state is not there.
        faults = (pickle.UnpicklingError, RuntimeError, EOFError, AttributeError)
        model = self._build(load_weights=False)
        try:
            common = dist_checkpointing.load_common_state_dict(str(weights))
            layout = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
            sharded = {"model": model.sharded_state_dict(metadata=layout)}
            state = dist_checkpointing.load(sharded, str(weights))["model"]
        except (CheckpointException, CheckpointingException, *faults) as error:
            cause = "a file is corrupt, or it is another model. Copy it again, or name the trained one: --hf FOLDER"
            if not (weights / COMMON_FILE).is_file():
                here = installed("megatron-core")
                cause = f"it may be of a later megatron-core than {here}. Convert in the container of the training"
            raise CheckpointError(
                f"{weights}: Megatron cannot load it ({type(error).__name__}: {first_line(error)}); {cause}"
            ) from error
        model.load_state_dict({name: value for name, value in state.items() if not name.endswith("_extra_state")})
        return model

    def from_huggingface(self) -> Any:
        """The model with the weights of the Hugging Face folder."""
        return self._build(load_weights=True)

    def _build(self, *, load_weights: bool) -> Any:
        provider = self._auto.to_megatron_provider(load_weights=load_weights)
        for name, value in self._settings().items():
            setattr(provider, name, value)
        provider.finalize()
        [model] = provider.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True)
        return model.eval()

    def _settings(self) -> dict[str, Any]:
        import torch

        fusions = ("gradient_accumulation", "masked_softmax", "bias_activation", "bias_dropout")
        return {
            **{f"{name}_fusion": False for name in fusions},
            "apply_rope_fusion": False, "cross_entropy_loss_fusion": False, "persist_layer_norm": False,
            "transformer_layer_spec": lambda config: layer_spec(self._architecture.experts),
            "use_cpu_initialization": True, "perform_initialization": False,
            "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "sequence_parallel": False,
            "params_dtype": torch.float32, "pipeline_dtype": torch.float32, "bf16": False, "fp16": False,
            "autocast_dtype": None,
            # transformers 5 moved rope_theta to where the bridge does not look; it would take 10000.
            "rotary_base": self._architecture.rope_theta,
            "share_embeddings_and_output_weights": self._architecture.tied,
            **(OF_A_MIXTURE if self._architecture.experts else {}),
        }  # fmt: skip

    def export(self, model: Any) -> Iterable[tuple[str, Tensor]]:
        """All tensors with their Hugging Face names, in float32."""
        tensors: Iterable[tuple[str, Tensor]] = self._auto.export_hf_weights([model], cpu=True, show_progress=False)
        return tensors


#: What a mixture has beside a dense model, on one rank and without Transformer Engine's kernels.
OF_A_MIXTURE: dict[str, Any] = {
    "expert_model_parallel_size": 1, "expert_tensor_parallel_size": 1, "moe_grouped_gemm": False,
    "moe_permute_fusion": False, "moe_router_dtype": "fp64", "moe_router_load_balancing_type": "none",
}  # fmt: skip


def layer_spec(experts: int) -> Any:
    """megatron-core's own layer with so many experts, and the names that a checkpoint of Transformer Engine's has."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    more = {"num_experts": experts, "moe_grouped_gemm": False} if experts else {}
    spec = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm", **more)
    if experts:
        # Transformer Engine fuses the norm before a feed-forward layer with it, but not the one before experts:
        # megatron-core's own layers would look for both under the name of a fused one.
        spec.submodules.sharded_state_dict_keys_map.pop(OF_EXPERTS, None)
    return spec


@functools.cache
def _name_the_norms() -> None:
    """Add the norms of layers without Transformer Engine to the bridge, once per process.

    Of experts that are no grouped product version 0.3.1 does not find the number; on one expert rank it is their own.
    """
    from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
    from megatron.bridge.models.conversion.param_mapping import AutoMapping, MegatronParamMapping
    from megatron.bridge.models.qwen.qwen3_bridge import Qwen3Bridge
    from megatron.bridge.models.qwen.qwen3_moe_bridge import Qwen3MoEBridge

    gather: Any = MegatronParamMapping.gather_from_ep_ranks

    def gathered(mapping: Any, weights: Any, module: Any, name: Any) -> Any:
        return {str(name): weights} if mapping.ep_size == 1 else gather(mapping, weights, module, name)

    MegatronParamMapping.gather_from_ep_ranks = gathered

    def add_norms(kind: Any, names: Mapping[str, str]) -> None:
        known = kind.mapping_registry

        def registry(bridge: Any) -> Any:
            more = [AutoMapping(megatron_param=ours, hf_param=theirs) for ours, theirs in names.items()]
            return MegatronMappingRegistry(*known(bridge).mappings, *more)

        kind.mapping_registry = registry

    add_norms(Qwen3Bridge, NORMS)
    add_norms(Qwen3MoEBridge, {name: theirs for name, theirs in NORMS.items() if OF_EXPERTS not in name})


def hf_names(model: Qwen3) -> list[str]:
    """Names of all tensors of the Hugging Face model, in its order; of a mixture each expert's, as on the hub."""
    experts = [f"mlp.experts.{expert}.{name}" for expert in range(model.experts) for name in FEED_FORWARD]
    inner = ["mlp.gate", *experts] if model.experts else [f"mlp.{name}" for name in FEED_FORWARD]
    layers = [f"model.layers.{layer}.{name}.weight" for layer in range(model.layers) for name in (*LAYER, *inner)]
    head = [] if model.tied else ["lm_head.weight"]
    return ["model.embed_tokens.weight", *layers, "model.norm.weight", *head]


@contextlib.contextmanager
def names_alone(config: Path, model: Qwen3) -> Iterator[Path]:
    """A temporary folder with config.json and tensor names only, which suffices for the bridge to export."""
    index = {"metadata": {}, "weight_map": dict.fromkeys(hf_names(model), SINGLE)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_bytes(config.read_bytes())
        (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
        yield folder


def write_weights(
    tensors: Iterable[tuple[str, Tensor]], names: Iterable[str], dtype: str, folder: Path, shard_bytes: int
) -> None:
    """Write the tensors in the order of ``names`` into safetensors files of at most ``shard_bytes``."""
    import torch
    from huggingface_hub import save_torch_state_dict

    state: dict[str, Tensor] = {}
    for name, value in tensors:
        if not bool(value.isfinite().all()):
            raise CheckpointError(f"{name} is not finite: the run diverged. Convert an earlier checkpoint")
        state[name] = value.to(getattr(torch, dtype), copy=True).contiguous()  # not a view of a fused tensor
    save_torch_state_dict({name: state[name] for name in names}, folder, max_shard_size=shard_bytes)
    let_others_read(folder)
