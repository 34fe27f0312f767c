"""Scores against a float64 forward written out by hand, of any architecture."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from nemo_uecr.core.agreement import TokenSample, agreement
from nemo_uecr.demo.task import build_tokenizer
from nemo_uecr.local import CHUNK_BYTES
from nemo_uecr.local.probes import TopTokens
from nemo_uecr.local.scores import score_policy, score_teacher, training_logp
from nemo_uecr.local.token_model import TokenModel
from tests.local.tiny import STUDENT, TEACHER, load, new_model, save_model, sizes
from tests.local.updates import by_hand, ragged, worst

WHOLE = [torch.arange(8)]


def sharp(model: Any, factor: float) -> Any:
    """Enlarge the output layer, so that the distributions are far from uniform and caps show."""
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(factor)
    return model


def gemma(tokenizer: Any) -> Gemma2ForCausalLM:
    """An architecture that caps its logits: tanh(z / 3) * 3."""
    torch.manual_seed(3)
    config = Gemma2Config(**sizes(tokenizer), final_logit_softcapping=3.0, attn_implementation="eager")
    return Gemma2ForCausalLM(config).eval()


BUILDERS: dict[str, Callable[[Any], Any]] = {
    "tied": lambda tokenizer: new_model(tokenizer, seed=2),
    "untied": lambda tokenizer: sharp(new_model(tokenizer, seed=2, tie_word_embeddings=False), 30.0),
    "capped": gemma,
}


@pytest.fixture(scope="module", params=list(BUILDERS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TokenModel:
    tokenizer = build_tokenizer()
    folder = save_model(BUILDERS[request.param](tokenizer), tokenizer, tmp_path_factory.mktemp(request.param))
    loaded = load(folder)
    assert loaded.splits == (request.param != "capped")
    return loaded


@pytest.mark.parametrize("chunk_bytes", [CHUNK_BYTES["cpu"], 4 * 283 * 3])
def test_scores_equal_a_float64_forward_and_those_of_training(
    model: TokenModel, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """Also where the output layer is walked three tokens at a time; training's bits make the first ratio exactly 1."""
    monkeypatch.setitem(CHUNK_BYTES, "cpu", chunk_bytes)
    sequences = ragged()
    mask_BT = sequences.mask_BT
    found = score_policy(model, sequences, WHOLE, rollout_temperature=0.7, entropy=True)
    for temperature, logp_BT in ((0.7, found.rollout_logp_BT), (1.0, found.logp_BT)):
        expected, entropy, _ = by_hand(model, sequences, temperature)
        assert worst(logp_BT, expected, mask_BT) <= 1e-5
    assert found.entropy_BT is not None
    assert worst(found.entropy_BT, entropy, mask_BT) <= 1e-5
    # what was not sampled is NaN, so that nobody reads it unnoticed
    assert bool(found.logp_BT[~mask_BT].isnan().all())
    assert bool(found.entropy_BT[~mask_BT].isnan().all())
    trained = training_logp(model, sequences.micro_batch(WHOLE[0]), temperature=0.7)
    assert torch.equal(trained.detach()[mask_BT], found.rollout_logp_BT[mask_BT])
    assert bool((trained[~mask_BT] == 0).all())
    assert trained.requires_grad


def test_bad_token_stays_nan_and_leaves_the_others_alone() -> None:
    """One row of the input embedding is NaN: the tokens after it in that response have no score, all others do."""
    model = load()
    sequences = ragged()
    clean = score_teacher(model, sequences, WHOLE, entropy=True)
    # an id that stands in the prompt of row 0 and nowhere else, given a vector that overflows in float32
    elsewhere = {
        i for row in range(1, 8) for i in sequences.prompts[row].token_ids + sequences.responses[row].token_ids
    }
    bad = next(i for i in sequences.prompts[0].token_ids if i not in elsewhere)
    untied = copy.deepcopy(model.module)
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach().clone())
    with torch.no_grad():
        untied.model.embed_tokens.weight[bad] = math.inf
    found = score_teacher(replace(model, module=untied), sequences, WHOLE, entropy=True)
    mask_BT = sequences.mask_BT
    assert bool(found.logp_BT[0][mask_BT[0]].isnan().all())
    assert found.entropy_BT is not None
    assert bool(found.entropy_BT[0][mask_BT[0]].isnan().all())
    assert torch.equal(found.logp_BT[1:][mask_BT[1:]], clean.logp_BT[1:][mask_BT[1:]])


def test_low_precision_scores_are_close_and_float32() -> None:
    full = load(TEACHER, role="teacher")
    low = load(TEACHER, role="teacher", dtype="bfloat16")
    kept = load(TEACHER, dtype="bfloat16")
    assert (low.module.dtype, kept.module.dtype) == (torch.bfloat16, torch.float32)  # small updates need float32
    exact = score_teacher(full, ragged(), WHOLE, entropy=True)
    for model in (low, kept):
        found = score_teacher(model, ragged(), WHOLE, entropy=True)
        assert found.logp_BT.dtype == torch.float32
        assert 0 < worst(found.logp_BT, exact.logp_BT.double(), ragged().mask_BT) < 0.5


@pytest.mark.parametrize("chunk_bytes", [CHUNK_BYTES["cpu"], 4 * 283 * 3])
def test_most_likely_ids_are_those_of_a_plain_forward(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    """Of both models, hence also their agreement; the scores beside them keep their bits."""
    monkeypatch.setitem(CHUNK_BYTES, "cpu", chunk_bytes)
    sequences, rows = ragged(), list(torch.arange(8).split(3))
    sample = TokenSample.of(sequences.mask_BT, columns=40, seed=0)
    top, plain = [], []
    for folder in (STUDENT, TEACHER):
        model = load(folder)
        probe = TopTokens(sample)
        found = score_teacher(model, sequences, rows, entropy=True, probes=[probe])
        without = score_teacher(model, sequences, rows, entropy=True)
        assert bool(probe.seen_C.all())
        assert torch.equal(found.logp_BT.nan_to_num(), without.logp_BT.nan_to_num())
        assert torch.equal(found.entropy_BT.nan_to_num(), without.entropy_BT.nan_to_num())
        logits_NV = torch.cat(
            [
                model.module(input_ids=torch.tensor([prompt.token_ids + response.token_ids])).logits[
                    0, len(prompt.token_ids) - 1 : -1
                ]
                for prompt, response in zip(sequences.prompts, sequences.responses, strict=True)
            ]
        )[sample.at_BT[sequences.mask_BT]][:, :40]
        assert probe.ids_CK.sort().values.equal(logits_NV.topk(20).indices.sort().values)
        top.append(probe.ids_CK)
        plain.append(logits_NV.argmax(1))
    top1_N, _ = agreement(*top)
    assert top1_N.tolist() == (plain[0] == plain[1]).double().tolist()
