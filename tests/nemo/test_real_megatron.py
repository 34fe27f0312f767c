"""The worker's scoring over real megatron-core on several ranks, against the whole model of transformers."""

from __future__ import annotations

import pytest
import torch

from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.nemo.score_checks import verified
from nemo_uecr.nemo.worker_scoring import ModelParallel, ScoreRequest, score_columns
from tests.config.shipped import CONFIGS
from tests.nemo.on_ranks import (
    TEMPERATURES,
    assert_same,
    batch,
    context_logits,
    offload_after_forwards,
    padded_rows,
    reference,
    score_context_parallel,
    score_wider_teacher,
    score_with_megatron,
    weights_after_an_update,
)
from tests.nemo.ranks import run_ranks
from tests.nemo.tiny_qwen3 import VOCABULARY, whole_model


@pytest.mark.real
def test_scores_are_those_of_the_whole_model() -> None:
    """On two tensor ranks by two stages, with a padded vocabulary."""
    pytest.importorskip("megatron.core")
    *earlier, first, second = run_ranks(4, score_with_megatron, tensor=2, pipeline=2, padded=64)
    assert earlier == [None, None]
    expected = reference()
    assert_same(first, expected, tolerance=5e-6)
    assert all(torch.equal(first[name], second[name]) for name in expected)


@pytest.mark.real
@pytest.mark.parametrize("columns", [40, 20], ids=["inside the last shard", "the whole last shard"])
def test_a_wider_teacher_is_cut_on_its_tensor_ranks(columns: int) -> None:
    """Two shards of 24 columns; the student has fewer than their 48."""
    pytest.importorskip("megatron.core")
    data = batch()
    ids = data["input_ids"] % columns
    with torch.no_grad():
        logits = whole_model()(input_ids=ids).logits.double()[:, :-1]
    logp = logits[..., :columns].log_softmax(dim=-1)
    expected = {
        "logp": logp.gather(2, ids[:, 1:, None])[..., 0],
        "entropy": torch.special.entr(logp.exp()).sum(dim=-1),
        "dropped": logits.softmax(dim=-1)[..., columns:].sum(dim=-1),
    }
    real = torch.arange(ids.shape[1] - 1) < (data["input_lengths"] - 1)[:, None]
    assert float(expected["dropped"][real].min()) > 1e-3
    for answer in run_ranks(2, score_wider_teacher, columns=columns):
        for name, value in expected.items():
            torch.testing.assert_close(answer[name][:, 1:][real].double(), value[real], atol=5e-6, rtol=0)
        request = ScoreRequest({"logp": 1.0}, True, columns, 5, dropped=True)
        verified(answer, request, data | {"input_ids": ids}, scorer="teacher")


def test_context_parallel_pieces() -> None:
    request = ScoreRequest(TEMPERATURES, True, VOCABULARY, 100)
    expected = score_columns(context_logits(), padded_rows(batch()), request, ModelParallel(None, None))
    for answer in run_ranks(2, score_context_parallel, imports=(), pieces=2):
        assert_same(answer, expected, tolerance=1e-6)


@pytest.mark.real
@pytest.mark.parametrize(
    ("tensor", "lengths"), [(1, tuple(range(4, 28))), (2, (1024,))], ids=["rotary tables", "sequence parallel"]
)
def test_a_teacher_of_megatron_leaves_nothing_behind(tensor: int, lengths: tuple[int, ...]) -> None:
    """Megatron keeps a rotary table for each length of a forward, and what sequence parallelism gathered."""
    pytest.importorskip("megatron.core")
    for found in run_ranks(tensor, offload_after_forwards, tensor=tensor, lengths=lengths):
        assert found["loaded"] - found["before"] > 20_000, "the model itself"
        assert found["scored"] - found["loaded"] > 20_000, "what the forwards left"
        assert found["off"] - found["before"] < 1_000, "a few bytes of random state"


@pytest.mark.real
def test_a_refit_reads_new_weights_that_are_the_same_on_all_ranks() -> None:
    """Where the gather waits for the next forward, a rank has its own half of a step and the old other half."""
    pytest.importorskip("megatron.core")
    native = load_recipe(CONFIGS / "uecr_qwen3_4b.yaml", []).values
    given = native["policy"]["megatron_cfg"]["distributed_data_parallel_config"]
    overlap = {name: value for name, value in given.items() if name.startswith("overlap_")}
    (first, ours), (second, theirs) = run_ranks(2, weights_after_an_update, overlap=overlap)
    assert min(first, second) > 0.99
    assert torch.equal(ours, theirs)
