"""A tiny Qwen3 in megatron-core over several ranks, saved in Megatron's own format."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.conversion.bridge import Bridge
from nemo_uecr.conversion.on_cpu import megatron_on_cpu
from nemo_uecr.conversion.reading import read_qwen3
from tests.conversion.real import tensors
from tests.nemo.on_ranks import score_batch
from tests.nemo.ranks import MEGATRON, run_ranks
from tests.nemo.tiny_qwen3 import VOCABULARY, make_model, parallel_model, start


@dataclass(frozen=True)
class Saved:
    """A checkpoint, and the log-probabilities of `batch()` by the model that was saved: [B, T] in nats."""

    folder: Path
    logp: Tensor


def save_and_score(
    rank: int, *, folders: dict[str, bool], tensor: int, pipeline: int, padded: int
) -> list[Tensor | None]:
    """A model for each empty folder, tied or not, and its scores on the last pipeline stage; every rank calls it."""
    start(tensor, pipeline)
    from megatron.core import dist_checkpointing

    found = []
    for folder, tied in folders.items():
        torch.manual_seed(5)
        model = make_model(tensor, pipeline, tied=tied, padded=padded)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms begin as ones; the same noise on every tensor-parallel rank
                noise = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                parameter.data += 0.2 * torch.randn(parameter.shape, generator=noise)
        state = {"model": model.sharded_state_dict(), "iteration": 1, "checkpoint_version": 3.0}
        dist_checkpointing.save(state, folder)
        found.append(_logp(model, tensor))
    return found


def save_mixture(rank: int, *, folder: str, expert: int) -> Tensor | None:
    """The tiny mixture as ranks with Transformer Engine's layers save it, and its scores of this rank's rows."""
    start(1, 1, expert)
    from megatron.core import dist_checkpointing
    from megatron.core.models.gpt import gpt_layer_specs

    native = gpt_layer_specs.get_gpt_layer_local_spec

    def named_as_theirs(**given: Any) -> Any:
        spec = native(**given)
        spec.submodules.sharded_state_dict_keys_map.pop("pre_mlp_layernorm.")
        return spec

    gpt_layer_specs.get_gpt_layer_local_spec = named_as_theirs
    model = parallel_model(1, 1, expert=expert)
    state = {"model": model.sharded_state_dict(), "iteration": 1, "checkpoint_version": 3.0}
    dist_checkpointing.save(state, folder)
    return _logp(model, 1)


def saved_mixture(parent: Path, *, expert: int) -> Saved:
    """A checkpoint of so many expert ranks, each of which scored its own rows."""
    folder = parent / "iter_0000001"
    folder.mkdir(parents=True)
    imports = (*MEGATRON, "transformers.models.qwen3_moe.modeling_qwen3_moe")
    found = run_ranks(expert, save_mixture, imports=imports, folder=str(folder), expert=expert)
    return Saved(folder, torch.cat(found))


def imported(model: Path, folder: Path) -> Path:
    """Megatron weights of a Hugging Face model, as Megatron-Bridge writes them when a NeMo-RL run starts."""
    dtype = next(iter(tensors(model).values())).dtype
    with megatron_on_cpu():
        bridge = Bridge(model, read_qwen3(model))
        module = bridge.from_huggingface().to(dtype)
        bridge._auto.save_megatron_model([module], folder)
    return folder


def _logp(model: Any, tensor: int) -> Tensor | None:
    scored = score_batch(model.eval(), tensor, temperatures={"logp": 1.0})
    return None if scored is None else scored["logp"]


def checkpoints(parent: Path, *, tensor: int, pipeline: int, padded: int = VOCABULARY) -> dict[bool, Saved]:
    """A tied and an untied model, by whether they are tied, each below Megatron's tracker."""
    folders = {}
    for tied in (False, True):
        beside = parent / ("tied" if tied else "untied")
        folders[tied] = beside / "iter_0000001"
        folders[tied].mkdir(parents=True)
        (beside / "latest_checkpointed_iteration.txt").write_text("1")
    found = run_ranks(
        tensor * pipeline, save_and_score, folders={str(folder): tied for tied, folder in folders.items()},
        tensor=tensor, pipeline=pipeline, padded=padded,
    )  # fmt: skip
    return {tied: Saved(folder.parent, logp) for (tied, folder), logp in zip(folders.items(), found[-1], strict=True)}
