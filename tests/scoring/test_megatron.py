"""A tiny Qwen3 of megatron-core over gloo gives the scores of transformers, from logits and from hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.nemo.ranks import run_ranks

from .conftest import float64_scores

BATCH, LENGTH, MICRO_BATCHES = 2, 16, 3
TEMPERATURES = (1.0, 0.7)
PADDED_VOCABULARY = 64


def token_ids() -> Tensor:
    return torch.randint(0, 48, (MICRO_BATCHES, BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(7))


def scored(rank: int, *, tensor: int, pipeline: int, sequence: bool) -> Tensor:
    """Scoring inside one forward-only run of Megatron's schedule; [3, N] on the last stage, else [3, 0]."""
    from tests.nemo.tiny_qwen3 import VOCABULARY, parallel_model, start

    start(tensor, pipeline)
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    from nemo_uecr.scoring.dense import score_logits
    from nemo_uecr.scoring.records import VocabShard

    model = parallel_model(tensor, pipeline, padded=PADDED_VOCABULARY, sequence=sequence)
    group = parallel_state.get_tensor_model_parallel_group()
    found = [torch.empty(3, 0)]

    def forward_step(batches: Iterator[Tensor], stage: Any) -> Any:
        tokens = next(batches)
        target_N = tokens[:, 1:].flatten()
        mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
        output = stage(tokens[:, :-1].contiguous(), torch.arange(LENGTH).expand(BATCH, LENGTH), mask)

        def collect(logits_BSV: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            columns = logits_BSV.shape[-1]
            shard = VocabShard(parallel_state.get_tensor_model_parallel_rank() * columns, group)
            options: dict[str, Any] = {
                "temperatures": TEMPERATURES, "entropy": True, "valid_vocab": VOCABULARY, "shard": shard,
            }  # fmt: skip
            scores = score_logits(logits_BSV.reshape(-1, columns), target_N, **options)
            found.append(torch.cat([scores.logp, scores.entropy.unsqueeze(0)]))
            return torch.zeros(()), {}

        return output, collect

    with torch.no_grad():
        get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=iter(token_ids()), model=[model],
            num_microbatches=MICRO_BATCHES, seq_length=LENGTH, micro_batch_size=BATCH, forward_only=True,
        )  # fmt: skip
    return torch.cat(found, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("tensor", "pipeline", "sequence"), [(1, 1, False), (2, 2, True)])
def test_same_scores_as_transformers(tensor: int, pipeline: int, sequence: bool) -> None:
    pytest.importorskip("megatron.core")
    from tests.nemo.tiny_qwen3 import whole_model

    ids = token_ids().flatten(0, 1)
    with torch.no_grad():
        logits_NV = whole_model()(input_ids=ids[:, :-1]).logits.flatten(0, 1)
    target_N = ids[:, 1:].flatten()
    (one, entropy), (warm, _) = (float64_scores(logits_NV, target_N, temperature) for temperature in TEMPERATURES)
    answers = run_ranks(tensor * pipeline, scored, tensor=tensor, pipeline=pipeline, sequence=sequence)
    assert all(answer.numel() == 0 for answer in answers[:-tensor]), "only the last stage has logits"
    for answer in answers[-tensor:]:
        assert float((answer - torch.stack([one, warm, entropy])).abs().max()) <= 1e-5
        assert torch.equal(answer, answers[-1]), "tensor-parallel ranks differ"
