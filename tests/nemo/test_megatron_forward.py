"""Our scores at T_r are NeMo-RL's own log-probabilities: its forward and packing over real megatron-core."""

from __future__ import annotations

import pytest
import torch

from tests.nemo.nemo_forward import score_and_compare
from tests.nemo_backend.on_ranks import batch
from tests.nemo_backend.ranks import run_ranks


@pytest.mark.parametrize(
    ("tensor", "pipeline", "packed"),
    [(2, 1, False), (1, 2, True)],
    ids=["tp2-padded", "pp2-packed"],
)
def test_scores_at_the_rollout_temperature_are_nemo_rls(tensor: int, pipeline: int, packed: bool) -> None:
    pytest.importorskip("megatron.core")
    results = run_ranks(tensor * pipeline, score_and_compare, tensor=tensor, pipeline=pipeline, packed=packed)
    native, every_stage = (
        next(result[name] for result in results if result[name] is not None) for name in ("native", "every_stage")
    )
    for result in results[-tensor:]:
        ours = result["ours"]["logp_0"]
        # Behind the end of a sequence NeMo-RL's column holds scores of padding; ours holds 0.
        real = ours != 0
        assert int(real.sum()) == int((batch()["input_lengths"] - 1).sum())
        torch.testing.assert_close(ours[real], native[real].float(), atol=2e-6, rtol=0)
        assert float(result["ours"]["entropy"][real].min()) > 0
    # NeMo-RL v0.7 divides hidden states between pipeline stages by the temperature too; our worker prevents that.
    apart = float((every_stage - native)[real].abs().max())
    assert apart > 0.1 if pipeline > 1 else apart == 0


def test_the_ratio_is_one_in_sixteen_bits() -> None:
    """bf16 logits are divided by T_r in bf16 at both ends: the first ratio is off 1 only by the order of sums."""
    pytest.importorskip("megatron.core")
    results = run_ranks(2, score_and_compare, tensor=2, pipeline=1, packed=True, sixteen_bit=True)
    for result in results:
        ours = result["ours"]["logp_0"]
        real = ours != 0
        ratio = (result["native"][real].double() - ours[real].double()).exp()
        assert float((ratio - 1).abs().max()) <= 2e-6
    # In float32 the same model scores otherwise: the sixteen bits were there.
    whole = run_ranks(1, score_and_compare, tensor=1, pipeline=1, packed=True)[0]["ours"]["logp_0"]
    assert float((whole[real] - ours[real]).abs().max()) > 1e-4
