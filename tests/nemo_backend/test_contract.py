"""Scores are refused wherever they do not belong to the tokens, temperatures or vocabulary they are used for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from nemo_uecr.nemo import columns as scoring
from nemo_uecr.nemo.columns import ModelParallel, score_columns
from nemo_uecr.nemo.contract import check_same, verified
from nemo_uecr.nemo.errors import ContractError
from nemo_uecr.nemo.layout import MicroBatch
from nemo_uecr.nemo.request import ScoreRequest, row_hash

WHOLE = ModelParallel(None, None)
REQUEST = ScoreRequest((0.7, 1.0), True, 11, 8)
TOKENS = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 0]]), "input_lengths": torch.tensor([3, 2])}


def answer_to(request: ScoreRequest, **changes: Any) -> dict[str, Any]:
    """A worker's answer over random logits."""
    columns: dict[str, Any] = score_columns(
        logits(request), MicroBatch(TOKENS["input_ids"], TOKENS["input_lengths"], None), request, WHOLE
    )
    columns["terms"] = [request.terms] * 2
    return columns | changes


def logits(request: ScoreRequest) -> torch.Tensor:
    return torch.randn(2, 3, request.vocabulary, generator=torch.Generator().manual_seed(0)) * 3


def test_an_honest_answer_is_accepted() -> None:
    scores = verified(answer_to(REQUEST), REQUEST, TOKENS, scorer="teacher")
    assert len(scores.logp) == 2
    assert scores.entropy_BS is not None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ScoreRequest((1.0, 0.7), True, 11, 8), "temperatures 1,0.7"),
        (ScoreRequest((0.7, 1.0), True, 12, 8), "vocabulary 12"),
        (ScoreRequest((0.7, 1.0), False, 11, 8), "entropy none"),
    ],
)
def test_other_terms_are_refused(other: ScoreRequest, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        verified(answer_to(other), REQUEST, TOKENS, scorer="teacher")


def test_one_worker_with_other_terms_is_enough() -> None:
    mixed = [REQUEST.terms, ScoreRequest((1.0,), True, 11, 8).terms]
    with pytest.raises(ContractError, match="temperatures 1;"):
        verified(answer_to(REQUEST, terms=mixed), REQUEST, TOKENS, scorer="teacher")


def test_rows_in_another_order_are_refused() -> None:
    swapped = row_hash(TOKENS["input_ids"], TOKENS["input_lengths"]).flip(0)
    with pytest.raises(ContractError, match="other token ids in 2 of 2 rows, first in row 0"):
        verified(answer_to(REQUEST, row_hash=swapped), REQUEST, TOKENS, scorer="teacher")


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
    honest = scoring._score_chunk

    def other(logits_TV: Any, found: Any, chunk: slice, request: ScoreRequest, parallel: ModelParallel) -> Any:
        return honest(logits_TV, found, chunk, replace(request, temperatures=temperatures), parallel)

    monkeypatch.setattr(scoring, "_score_chunk", other)
    micro = MicroBatch(TOKENS["input_ids"], TOKENS["input_lengths"], None)
    answer = score_columns(logits(REQUEST).to(dtype), micro, REQUEST, WHOLE) | {"terms": [REQUEST.terms] * 2}
    with pytest.raises(ContractError, match=message):
        verified(answer, REQUEST, TOKENS, scorer="teacher")


def test_a_worker_that_answers_another_question_is_caught() -> None:
    """It repeats the terms it was asked under."""
    answer = answer_to(ScoreRequest((0.5, 1.0), True, 11, 8), terms=[REQUEST.terms] * 2)
    with pytest.raises(ContractError, match=r"divided by the temperatures \[\(0.5, 1.0\)\]; expected \(0.7, 1.0\)"):
        verified(answer, REQUEST, TOKENS, scorer="teacher")


def test_filtered_logits_are_caught() -> None:
    """Top-k before the scores: 5 of 11 columns carry probability."""
    wide = logits(REQUEST)
    kept = wide.masked_fill(wide < wide.topk(5, dim=-1).values[..., -1:], -torch.inf)
    micro = MicroBatch(TOKENS["input_ids"], TOKENS["input_lengths"], None)
    answer = score_columns(kept, micro, REQUEST, WHOLE) | {"terms": [REQUEST.terms] * 2}
    with pytest.raises(ContractError, match="scored over 5 columns; expected the 11"):
        verified(answer, REQUEST, TOKENS, scorer="teacher")


def test_a_score_beside_its_token_is_caught() -> None:
    honest = answer_to(REQUEST)
    with pytest.raises(ContractError, match=r"off the definition by .* shifts or filters"):
        verified(honest | {"logp_0": honest["logp_0"].roll(-1, 1)}, REQUEST, TOKENS, scorer="teacher")
