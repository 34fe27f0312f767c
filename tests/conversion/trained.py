"""A tiny Qwen3 trained one step in megatron-core over several ranks and saved in Megatron's own format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.nemo.on_ranks import score_batch
from tests.nemo.ranks import run_ranks
from tests.nemo.tiny_qwen3 import VOCABULARY, make_model, start


@dataclass(frozen=True)
class Trained:
    """A checkpoint and what the model that was saved says."""

    folder: Path
    logp: Tensor


def train_and_save(
    rank: int, *, folders: dict[str, bool], tensor: int, pipeline: int, padded: int
) -> list[Tensor | None]:
    """Train one step, save, and score, once for each empty folder, tied or not; every rank calls it.

    Returns:
        The trained models' log-probabilities of `batch()`, [B, T] in nats; None on all pipeline stages but the last.
    """
    start(tensor, pipeline)
    from megatron.core import dist_checkpointing

    found = []
    for folder, tied in folders.items():
        torch.manual_seed(5)
        model = make_model(tensor, pipeline, tied=tied, padded=padded)
        train_one_step(model)
        state = {"model": model.sharded_state_dict(), "iteration": 1, "checkpoint_version": 3.0}
        dist_checkpointing.save(state, folder)
        found.append(_logp(model, tensor))
    return found


def load_and_score(rank: int, *, folder: str, tensor: int, pipeline: int, tied: bool) -> Tensor | None:
    """Log-probabilities of `batch()` on the last stage, by megatron-core's own loading; every rank calls it."""
    start(tensor, pipeline)
    from megatron.core import dist_checkpointing

    model = make_model(tensor, pipeline, tied=tied)
    layout = dist_checkpointing.load_content_metadata(folder)
    state = dist_checkpointing.load({"model": model.sharded_state_dict(metadata=layout)}, folder)["model"]
    model.load_state_dict({name: value for name, value in state.items() if not name.endswith("_extra_state")})
    return _logp(model, tensor)


def _logp(model: Any, tensor: int) -> Tensor | None:
    scored = score_batch(model.eval(), tensor, temperatures={"logp": 1.0})
    return None if scored is None else scored["logp"]


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
