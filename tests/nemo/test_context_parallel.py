"""Where a token's logits stand on each context-parallel rank: our rows against NeMo-RL's own packing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_uecr.nemo.two_temperatures import MicroBatch, predictions_here
from tests.nemo.nemo_forward import megatron_data


@pytest.mark.parametrize("ranks", [2, 4])
@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), tensor=st.sampled_from([1, 2]),
    pipeline=st.sampled_from([1, 2]), fp8=st.booleans(),
)  # fmt: skip
def test_each_prediction_is_read_from_the_rank_and_row_that_nemo_rl_puts_it(
    nemo_rl: str, ranks: int, lengths: list[int], tensor: int, pipeline: int, fp8: bool
) -> None:
    """The packed ids stand in for logits: every token's id is unlike every other, and padding is 0."""
    data = megatron_data()
    lengths_B, width = torch.tensor(lengths), max(lengths)
    ids_BS = torch.arange(1, len(lengths) * width + 1).reshape(len(lengths), width)
    ids_BS = ids_BS * (torch.arange(width) < lengths_B[:, None])
    multiple = 2 * ranks * tensor
    whole = sum(-(-length // multiple) * multiple for length in lengths)
    sequence, packed, padded_to = data._get_pack_sequence_parameters_for_megatron(
        {
            "tensor_model_parallel_size": tensor, "sequence_parallel": tensor > 1, "context_parallel_size": ranks,
            "pipeline_model_parallel_size": pipeline, "fp8_cfg": {"enabled": fp8, "fp8_recipe": "mxfp8"},
        },
        multiple, whole + 3 * multiple,
    )  # fmt: skip
    seen = []
    for rank in range(ranks):
        _, here, _, _, starts = data._pack_sequences_for_megatron(
            ids_BS, lengths_B, sequence, packed, padded_to, cp_rank=rank, cp_size=ranks
        )
        found = predictions_here(MicroBatch(ids_BS, lengths_B, starts), here.shape[1], cp_rank=rank, cp_size=ranks)
        assert torch.equal(here[0, found.logits_row_N], ids_BS[found.batch_N, found.column_N])
        assert torch.equal(found.target_N, ids_BS[found.batch_N, found.column_N + 1])
        seen += list(zip(found.batch_N.tolist(), found.column_N.tolist(), strict=True))
    assert sorted(seen) == [(row, column) for row, length in enumerate(lengths) for column in range(length - 1)]
