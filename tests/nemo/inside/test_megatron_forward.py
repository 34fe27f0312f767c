"""Our scores at T_r are NeMo-RL's own log-probabilities: its forward, packing and cuts over real megatron-core."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_uecr.nemo.worker_scoring import MicroBatch, predictions_here
from tests.nemo.inside.nemo_forward import megatron_data, score_and_compare
from tests.nemo.on_ranks import assert_same, batch, reference
from tests.nemo.ranks import run_ranks

LAYOUTS = {"tp2": (2, 1), "pp2": (1, 2)}


@pytest.fixture(scope="module")
def of_layouts() -> list[dict[tuple[int, int], Any]]:
    """By ranks of tensor and of pipeline, what each rank found."""
    pytest.importorskip("megatron.core")
    return run_ranks(2, score_and_compare, layouts=[*LAYOUTS.values()])


@pytest.fixture(params=LAYOUTS)
def compared(
    of_layouts: list[dict[tuple[int, int], Any]], request: pytest.FixtureRequest
) -> tuple[int, int, list[Any]]:
    """Ranks by tensor and by pipeline, and what each of them found."""
    layout = LAYOUTS[request.param]
    return *layout, [found[layout] for found in of_layouts]


@pytest.mark.parametrize("form", ["packed", "padded rows"])
def test_scores_at_the_rollout_temperature_are_nemo_rls(compared: tuple[int, int, list[Any]], form: str) -> None:
    tensor, pipeline, found = compared
    results = [each[form] for each in found]
    native, every_stage = (
        next(result[name] for result in results if result[name] is not None) for name in ("native", "every_stage")
    )
    for result in results[-tensor:]:
        ours, expected = result["ours"], reference()
        place = [ours["row_hash"].tolist().index(row) for row in expected["row_hash"].tolist()]  # packing moves rows
        assert_same({name: value[place] for name, value in ours.items()}, expected, tolerance=5e-6)
        ours = ours["rollout_logp"]
        # Behind the end of a sequence NeMo-RL's column holds scores of padding; ours holds 0.
        real = ours != 0
        assert int(real.sum()) == int((batch()["input_lengths"] - 1).sum())
        torch.testing.assert_close(ours[real], native[real].float(), atol=2e-6, rtol=0)
    # NeMo-RL v0.7 divides hidden states between pipeline stages by the temperature too; our worker prevents that.
    apart = float((every_stage - native)[real].abs().max())
    assert apart > 0.1 if pipeline > 1 else apart == 0


def test_the_ratio_is_one_in_sixteen_bits(compared: tuple[int, int, list[Any]]) -> None:
    """bf16 logits are divided by T_r in bf16 at both ends: the first ratio is off 1 only by the order of sums."""
    _, pipeline, found = compared
    if pipeline > 1:
        pytest.skip("the tiny model's stages hand float32 on")
    for each in found:
        ours, native = each["sixteen bits"]["ours"]["rollout_logp"], each["sixteen bits"]["native"]
        real = ours != 0
        ratio = (native[real].double() - ours[real].double()).exp()
        assert float((ratio - 1).abs().max()) <= 2e-6
        # In float32 the same model scores otherwise: the sixteen bits were there.
        assert float((each["packed"]["ours"]["rollout_logp"][real] - ours[real]).abs().max()) > 1e-4


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
        found = predictions_here(MicroBatch(ids_BS, lengths_B, starts), cp_rank=rank, cp_size=ranks)
        assert torch.equal(here[0, found.logits_row_N], ids_BS[found.batch_N, found.column_N])
        assert torch.equal(found.target_N, ids_BS[found.batch_N, found.column_N + 1])
        seen += list(zip(found.batch_N.tolist(), found.column_N.tolist(), strict=True))
    assert sorted(seen) == [(row, column) for row, length in enumerate(lengths) for column in range(length - 1)]
