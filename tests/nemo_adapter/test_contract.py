"""Scores are refused wherever they do not belong to the tokens, temperatures or vocabulary they are used for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nemo_uecr.megatron_worker.request import ScoreRequest, row_hash
from nemo_uecr.nemo_adapter.contract import check_rows, check_same, verified
from nemo_uecr.nemo_adapter.errors import ContractError

REQUEST = ScoreRequest((0.7, 1.0), True, 11, 8)
TOKENS = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 0]]), "input_lengths": torch.tensor([3, 2])}


def answer_to(request: ScoreRequest, **changes: Any) -> dict[str, Any]:
    columns: dict[str, Any] = {name: torch.zeros(2, 3) for name in request.columns}
    columns["row_hash"] = row_hash(TOKENS["input_ids"], TOKENS["input_lengths"])
    columns["terms"] = [request.terms] * 2
    return columns | changes


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


def test_a_lost_row_is_refused() -> None:
    short = row_hash(TOKENS["input_ids"], TOKENS["input_lengths"])[:1]
    with pytest.raises(ContractError, match="scored 1 rows; expected the 2"):
        verified(answer_to(REQUEST, row_hash=short), REQUEST, TOKENS, scorer="teacher")


def test_another_shape_or_dtype_is_refused() -> None:
    for wrong in (torch.zeros(2, 2), torch.zeros(2, 3, dtype=torch.bfloat16)):
        with pytest.raises(ContractError, match="expected float32"):
            verified(answer_to(REQUEST, logp_1=wrong), REQUEST, TOKENS, scorer="teacher")


def test_a_column_that_changed_on_the_way_is_refused() -> None:
    column = torch.tensor([0.1, 0.2])
    check_same(column, column.clone(), what="advantages")
    with pytest.raises(ContractError, match="advantages changed"):
        check_same(column.clamp(max=0.15), column, what="advantages")


def test_rows_of_another_count_are_refused() -> None:
    with pytest.raises(ContractError, match="cover 1 rows; expected 2"):
        check_rows(torch.zeros(1), torch.zeros(2), what="scores")
