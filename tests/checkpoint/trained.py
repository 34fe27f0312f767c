"""A tiny Qwen3 trained one step in megatron-core over several ranks and saved in Megatron's own format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.nemo.two_temperatures import ModelParallel, ScoreRequest, score_tokens
from tests.nemo_backend.on_ranks import MegatronMicroBatches, batch

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, FEED, ROPE = 48, 32, 2, 4, 2, 16, 40, 1e6


@dataclass(frozen=True)
class Trained:
    """A checkpoint and what the model that was saved says."""

    folder: Path
    logp: Tensor


def train_and_save(
    rank: int, *, folders: dict[str, bool], tensor: int, pipeline: int, padded: int
) -> list[Tensor | None]:
    """Train one step, save, and score, once for each folder; every rank calls it.

    Args:
        rank: of this process.
        folders: the iteration's folder, empty; whether the output layer is the embedding.
        tensor: tensor-parallel ranks.
        pipeline: pipeline stages.
        padded: rows of the embedding, the vocabulary and its padding.

    Returns:
        The trained models' log-probabilities of `batch()`, [B, T] in nats; None on all pipeline stages but the last.
    """
    _start(tensor, pipeline)
    from megatron.core import dist_checkpointing

    found = []
    for folder, tied in folders.items():
        torch.manual_seed(5)
        model = make_model(tensor, pipeline, tied=tied, padded=padded)
        train_one_step(model)
        state = {"model": model.sharded_state_dict(), "iteration": 1, "checkpoint_version": 3.0}
        dist_checkpointing.save(state, folder)
        found.append(_score(model, tensor))
    return found


def load_and_score(rank: int, *, folder: str, tensor: int, pipeline: int, tied: bool) -> Tensor | None:
    """Log-probabilities of `batch()` on the last stage, by megatron-core's own loading; every rank calls it."""
    _start(tensor, pipeline)
    from megatron.core import dist_checkpointing

    model = make_model(tensor, pipeline, tied=tied, padded=VOCABULARY)
    layout = dist_checkpointing.load_content_metadata(folder)
    state = dist_checkpointing.load({"model": model.sharded_state_dict(metadata=layout)}, folder)["model"]
    model.load_state_dict({name: value for name, value in state.items() if not name.endswith("_extra_state")})
    return _score(model, tensor)


def _start(tensor: int, pipeline: int) -> None:
    from tests.nemo_backend.cpu import allow_cpu

    allow_cpu()
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel(tensor, pipeline)
    tensor_parallel.model_parallel_cuda_manual_seed(1)


def _score(model: Any, tensor: int) -> Tensor | None:
    from megatron.core import parallel_state

    scored = score_tokens(
        MegatronMicroBatches(model.eval(), packed=False),
        batch(),
        ScoreRequest((1.0,), False, VOCABULARY, 5),
        ModelParallel(parallel_state.get_tensor_model_parallel_group() if tensor > 1 else None, None),
    )
    return None if scored is None else scored["logp_0"]


def make_model(tensor: int, pipeline: int, *, tied: bool, padded: int) -> Any:
    """This rank's part, initialised by Megatron itself."""
    from megatron.core import parallel_state as state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=KV_HEADS,
        kv_channels=HEAD, ffn_hidden_size=FEED, normalization="RMSNorm", layernorm_epsilon=1e-6,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        add_qkv_bias=False, qk_layernorm=True, hidden_dropout=0.0, attention_dropout=0.0, init_method_std=0.2,
        use_cpu_initialization=True, tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
        pipeline_dtype=torch.float32, params_dtype=torch.float32, bias_activation_fusion=False,
        masked_softmax_fusion=False, bias_dropout_fusion=False, apply_rope_fusion=False,
        gradient_accumulation_fusion=False, persist_layer_norm=False, batch_p2p_comm=True, batch_p2p_sync=False,
        variable_seq_lengths=True, moe_token_dispatcher_type="alltoall", attention_softmax_in_fp32=True,
    )  # fmt: skip
    return GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
        vocab_size=padded, max_sequence_length=128, pre_process=state.is_pipeline_first_stage(),
        post_process=state.is_pipeline_last_stage(), share_embeddings_and_output_weights=tied,
        position_embedding_type="rope", rotary_base=int(ROPE), parallel_output=True,
    )  # fmt: skip


def train_one_step(model: Any) -> None:
    """One step of AdamW through Megatron's schedule, its data-parallel wrapper and its reduction of gradients."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    wrapped = DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)
    wrapped.zero_grad_buffer()
    model.config.finalize_model_grads_func = finalize_model_grads
    ids = torch.randint(0, VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(11))
    positions = torch.arange(12).expand_as(ids)
    mask = torch.triu(torch.ones(1, 1, 12, 12, dtype=torch.bool), 1)

    def step(iterator: Iterator[Tensor], part: Any) -> Any:
        rows = next(iterator)

        def loss(logits: Tensor) -> Any:
            entropy = vocab_parallel_cross_entropy(
                logits[:, :-1].transpose(0, 1).contiguous(), rows[:, 1:].t().contiguous()
            )
            return entropy.mean(), {}

        return part(rows, positions[: len(rows)], mask), loss

    get_forward_backward_func()(
        forward_step_func=step, data_iterator=iter(ids.split(2)), model=[wrapped], num_microbatches=2, seq_length=12,
        micro_batch_size=2, decoder_seq_length=12, forward_only=False,
    )  # fmt: skip
    for parameter in model.parameters():
        parameter.grad = parameter.main_grad
    torch.optim.AdamW(model.parameters(), lr=0.03).step()
    model.config.finalize_model_grads_func = None


def checkpoints(parent: Path, *, tensor: int, pipeline: int, padded: int = VOCABULARY) -> dict[bool, Trained]:
    """Train and save as Megatron does: tied and untied, by whether they are tied."""
    from tests.nemo_backend.ranks import run_ranks

    folders = {}
    for tied in (False, True):
        beside = parent / ("tied" if tied else "untied")
        folders[tied] = beside / "iter_0000001"
        folders[tied].mkdir(parents=True)
        (beside / "latest_checkpointed_iteration.txt").write_text("1")
    found = run_ranks(
        tensor * pipeline, train_and_save, folders={str(folder): tied for tied, folder in folders.items()},
        tensor=tensor, pipeline=pipeline, padded=padded,
    )  # fmt: skip
    return {tied: Trained(folder.parent, logp) for (tied, folder), logp in zip(folders.items(), found[-1], strict=True)}


def hf_config(*, tied: bool) -> dict[str, Any]:
    """The same architecture in the words of a Hugging Face config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "intermediate_size": FEED, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "attention_bias": False, "tie_word_embeddings": tied, "rope_theta": ROPE, "torch_dtype": "float32",
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
