"""The worker's scoring over real megatron-core on several ranks, against the whole model of transformers."""

from __future__ import annotations

from typing import Any

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
    mixture,
    offload_after_forwards,
    padded_rows,
    reference,
    score_context_parallel,
    score_wider_teacher,
    score_with_megatron,
    weights_after_an_update,
)
from tests.nemo.ranks import MEGATRON, run_ranks
from tests.nemo.tiny_qwen3 import EXPERTS, VOCABULARY, whole_model
from tests.plan.subjects import tiny_mixture

#: What the ranks of a mixture share.
OF_A_MIXTURE = (*MEGATRON, "transformers.models.qwen3_moe.modeling_qwen3_moe")


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


@pytest.fixture(scope="module")
def mixtures() -> dict[str, list[dict[str, Any]]]:
    """What each rank does, by layout: alone, over two expert ranks, and over two that are tensor ranks as well."""
    pytest.importorskip("megatron.core")
    layouts = {"one": (1, 1), "ep2": (1, 2), "tp2 sp ep2": (2, 2)}
    return {
        name: run_ranks(max(given), mixture, imports=OF_A_MIXTURE, tensor=given[0], expert=given[1])
        for name, given in layouts.items()
    }


@pytest.mark.real
def test_scores_of_a_mixture_are_those_of_the_whole_model(mixtures: dict[str, Any]) -> None:
    """Over expert ranks alone each rank has its own rows; over tensor ranks both have all of them."""
    expected = reference(mixture=True)
    for name, parts in (("one", 1), ("ep2", 2), ("tp2 sp ep2", 1)):
        for place, found in enumerate(mixtures[name]):
            rows = {column: value.chunk(parts)[place % parts] for column, value in expected.items()}
            assert_same(found["scores"], rows, tolerance=2e-6)


@pytest.mark.real
def test_a_rank_of_a_mixture_holds_what_the_plan_counts(mixtures: dict[str, Any]) -> None:
    for name, layout in {"one": (1, 1, 1), "ep2": (1, 2, 2), "tp2 sp ep2": (2, 2, 2)}.items():
        tensor, expert, gpus = layout
        model = tiny_mixture(tensor=tensor, expert=expert, gpus=gpus)
        assert {found["parameters"] for found in mixtures[name]} == {model.parameters(0)}


@pytest.mark.real
def test_a_mixture_leaves_nothing_behind(mixtures: dict[str, Any]) -> None:
    """Its token dispatchers, which are no modules, keep where each token of the last forward went."""
    for found in (each["bytes"] for ranks in mixtures.values() for each in ranks):
        assert found["loaded"] - found["before"] > 20_000, "the model itself"
        assert found["scored"] - found["loaded"] > 20_000, "what the forward left"
        assert found["off"] - found["before"] < 1_000


@pytest.mark.real
def test_a_step_over_expert_ranks_is_that_of_one_rank(mixtures: dict[str, Any]) -> None:
    """With a router that is frozen, as it is by NeMo-RL's default; the experts move."""
    (whole,), ranks = ([found["trained"] for found in mixtures[name]] for name in ("one", "ep2"))
    assert {name for found in ranks for name in found} == set(whole)
    for found in ranks:
        assert len(found) < len(whole), "each rank has its own experts"
        for name, value in found.items():
            torch.testing.assert_close(value, whole[name], atol=1e-5, rtol=0)
    before = whole_model(mixture=True).state_dict()
    for layer in range(2):
        router = whole[f"decoder.layers.{layer}.mlp.router.weight"]
        assert torch.equal(router, before[f"model.layers.{layer}.mlp.gate.weight"])
        for one in range(EXPERTS):
            moved = whole[f"decoder.layers.{layer}.mlp.experts.local_experts.{one}.linear_fc2.weight"]
            assert float((moved - before[f"model.layers.{layer}.mlp.experts.down_proj"][one]).abs().max()) > 1e-4


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
