"""Scores of a micro-batch in every layout against a plain softmax, and refused where they belong elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_uecr.nemo import two_temperatures
from nemo_uecr.nemo.contract import ContractError, check_same, verified
from nemo_uecr.nemo.two_temperatures import MicroBatch, ModelParallel, ScoreRequest, row_hash, score_columns
from nemo_uecr.scoring.records import NonFiniteScoreError

ALONE = ModelParallel(None, None)
VOCABULARY = 11
REQUEST = ScoreRequest((0.7, 1.0), True, VOCABULARY, 5)


def rows_of(lengths: list[int], width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, VOCABULARY, (len(lengths), width), generator=generator)
    return ids, torch.tensor(lengths)


def logits_of(rows: int, width: int, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randn(rows, width, vocabulary, generator=torch.Generator().manual_seed(0)) * 3


def expected(logits_BSV: Tensor, ids: Tensor, lengths: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability at a temperature and entropy at 1, at the scored token; a loop, so that no shift is shared."""
    logp, entropy = torch.zeros(ids.shape), torch.zeros(ids.shape)
    for row in range(ids.shape[0]):
        for token in range(1, int(lengths[row])):
            z = logits_BSV[row, token - 1].double()
            logp[row, token] = torch.log_softmax(z / temperature, -1)[ids[row, token]]
            p = torch.softmax(z, -1)
            entropy[row, token] = -(p * p.log()).sum()
    return logp, entropy


def assert_expected(found: dict[str, Tensor], logits_BSV: Tensor, ids: Tensor, lengths: Tensor) -> None:
    for name, temperature in (("logp_0", 0.7), ("logp_1", 1.0)):
        logp, entropy = expected(logits_BSV, ids, lengths, temperature)
        torch.testing.assert_close(found[name], logp, atol=2e-6, rtol=0)
    torch.testing.assert_close(found["entropy"], entropy, atol=2e-6, rtol=0)


def test_padded_rows() -> None:
    ids, lengths = rows_of([6, 4, 2], 6)
    logits = logits_of(3, 6)
    assert_expected(score_columns(logits, MicroBatch(ids, lengths, None), REQUEST, ALONE), logits, ids, lengths)


@pytest.mark.parametrize("multiple", [1, 4])
def test_packed_sequences(multiple: int) -> None:
    """Sequences side by side, each padded to a multiple."""
    ids, lengths = rows_of([6, 3, 5], 6)
    logits = logits_of(3, 6)
    parts, starts = [], [0]
    for row, length in enumerate(lengths.tolist()):
        part = torch.full((length + -length % multiple, VOCABULARY), 50.0)
        part[:length] = logits[row, :length]
        parts.append(part)
        starts.append(starts[-1] + len(part))
    micro = MicroBatch(ids, lengths, torch.tensor(starts, dtype=torch.int32))
    assert_expected(score_columns(torch.cat(parts)[None], micro, REQUEST, ALONE), logits, ids, lengths)


def test_logits_that_are_not_finite_are_refused() -> None:
    """As a teacher with one bad weight gives them; the seventh scored token is the second of row 1."""
    ids, lengths = rows_of([6, 4], 6)
    logits = logits_of(2, 6)
    logits[1, 1, 3] = float("nan")
    with pytest.raises(NonFiniteScoreError, match="token 6"):
        score_columns(logits, MicroBatch(ids, lengths, None), replace(REQUEST, chunk_tokens=100), ALONE)


def test_chunks_do_not_change_a_bit() -> None:
    ids, lengths = rows_of([6, 4, 6], 6)
    micro = MicroBatch(ids, lengths, None)
    whole, pieces = (
        score_columns(logits_of(3, 6), micro, replace(REQUEST, chunk_tokens=size), ALONE) for size in (1000, 2)
    )
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_bfloat16_is_divided_in_bfloat16() -> None:
    """Training divides bf16 logits in bf16; a float32 division here would put the first ratio off 1."""
    ids, lengths = rows_of([6], 6)
    logits = (logits_of(1, 6) * 7).bfloat16()
    found = score_columns(logits, MicroBatch(ids, lengths, None), REQUEST, ALONE)
    as_trained, _ = expected(logits.div(0.7).float(), ids, lengths, 1.0)
    in_float, _ = expected(logits.float(), ids, lengths, 0.7)
    torch.testing.assert_close(found["logp_0"], as_trained, atol=2e-5, rtol=0)
    assert float((as_trained - in_float).abs().max()) > 1e-2
    raw, entropy = expected(logits.float(), ids, lengths, 1.0)
    torch.testing.assert_close(found["logp_1"], raw, atol=2e-5, rtol=0)
    torch.testing.assert_close(found["entropy"], entropy, atol=2e-5, rtol=0)


def test_padded_vocabulary_carries_no_probability() -> None:
    ids, lengths = rows_of([6], 6)
    logits = logits_of(1, 6)
    padded = torch.cat((logits, torch.full((1, 6, 3), 9.0)), dim=2)
    assert_expected(score_columns(padded, MicroBatch(ids, lengths, None), REQUEST, ALONE), logits, ids, lengths)


def test_row_hash_sees_ids_and_order_but_no_padding() -> None:
    ids = torch.tensor([[3, 4, 5, 0], [4, 3, 5, 0], [3, 4, 5, 9], [3, 4, 0, 0]])
    first, swapped, other_padding, shorter = row_hash(ids, torch.tensor([3, 3, 3, 2])).tolist()
    assert first == other_padding
    assert len({first, swapped, shorter}) == 3
    # A longer row that ends in the padding id is another row.
    assert row_hash(ids[:1], torch.tensor([4])).item() != first


TOKENS = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 0]]), "input_lengths": torch.tensor([3, 2])}


def answer_to(request: ScoreRequest, logits: Tensor | None = None, **changes: Any) -> dict[str, Any]:
    """A worker's answer over random logits."""
    micro = MicroBatch(TOKENS["input_ids"], TOKENS["input_lengths"], None)
    logits = logits_of(2, 3, request.vocabulary) if logits is None else logits
    return score_columns(logits, micro, request, ALONE) | {"terms": [request.terms] * 2} | changes


def refused(answer: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        verified(answer, REQUEST, TOKENS, scorer="teacher")


def test_an_honest_answer_is_accepted() -> None:
    scores = verified(answer_to(REQUEST), REQUEST, TOKENS, scorer="teacher")
    assert len(scores.logp) == 2
    assert scores.entropy_BS is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperatures": (1.0, 0.7)}, "temperatures 1,0.7"),
        ({"vocabulary": 12}, "vocabulary 12"),
        ({"entropy": False}, "entropy none"),
    ],
)
def test_other_terms_are_refused(changes: Any, message: str) -> None:
    other = replace(REQUEST, **changes)
    refused(answer_to(other), message)
    # One worker with other terms is enough.
    refused(answer_to(REQUEST, terms=[REQUEST.terms, other.terms]), message)


def test_rows_in_another_order_are_refused() -> None:
    swapped = row_hash(TOKENS["input_ids"], TOKENS["input_lengths"]).flip(0)
    refused(answer_to(REQUEST, row_hash=swapped), "other token ids than the batch's 2 rows, first in row 0")


def test_a_column_that_changed_on_the_way_is_refused() -> None:
    column = torch.tensor([0.1, 0.2])
    check_same(column, column.clone(), what="advantages")
    with pytest.raises(ContractError, match="advantages changed"):
        check_same(column.clamp(max=0.15), column, what="advantages")


@pytest.mark.parametrize(
    ("temperatures", "message", "dtype"),
    [
        ((0.7, 0.7), "log-probability at temperature 1 is off", torch.float32),
        ((1.0, 1.0), "log-probability at temperature 0.7 is off", torch.bfloat16),
    ],
)
def test_a_worker_that_divides_by_another_temperature_is_caught(
    temperatures: tuple[float, float], message: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its terms still say what was asked; its numbers do not."""
    honest = two_temperatures._score_chunk

    def other(logits_NV: Any, target_N: Any, request: ScoreRequest, group: Any) -> Any:
        return honest(logits_NV, target_N, replace(request, temperatures=temperatures), group)

    monkeypatch.setattr(two_temperatures, "_score_chunk", other)
    refused(answer_to(REQUEST, logits_of(2, 3).to(dtype)), message)


def test_a_worker_that_answers_another_question_is_caught() -> None:
    """It repeats the terms it was asked under."""
    answer = answer_to(replace(REQUEST, temperatures=(0.5, 1.0)), terms=[REQUEST.terms] * 2)
    refused(answer, r"divided by the temperatures \[\(0.5, 1.0\)\]; expected \(0.7, 1.0\)")


def test_filtered_logits_are_caught() -> None:
    """Top-k before the scores: 5 of 11 columns carry probability."""
    wide = logits_of(2, 3)
    kept = wide.masked_fill(wide < wide.topk(5, dim=-1).values[..., -1:], -torch.inf)
    refused(answer_to(REQUEST, kept), "scored over 5 columns; expected the 11")


def test_a_score_beside_its_token_is_caught() -> None:
    honest = answer_to(REQUEST)
    refused(honest | {"logp_0": honest["logp_0"].roll(-1, 1)}, r"off the definition by .* shifts or filters")
