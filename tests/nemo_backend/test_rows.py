"""Masked rows round batches up and vanish again; groups follow the prompt's place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nemo_uecr.nemo.errors import BatchFactsError
from nemo_uecr.nemo.estimator import equal_rows, slots
from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN
from nemo_uecr.nemo.minibatches import padded_minibatches
from nemo_uecr.nemo.rows import padding_rows, with_masked_rows, without_masked_rows


def columns_of(rows: int) -> dict[str, Any]:
    return {
        "input_ids": torch.arange(1, rows * 3 + 1).view(rows, 3),
        "input_lengths": torch.full((rows,), 3),
        "sample_mask": torch.ones(rows),
        "names": [f"row {row}" for row in range(rows)],
    }


@pytest.mark.parametrize(("rows", "multiple", "extra"), [(1007, 2, 1), (1007, 4, 1), (1008, 7, 0), (5, 4, 3)])
def test_rounding_up_and_back(rows: int, multiple: int, extra: int) -> None:
    columns = columns_of(rows)
    assert padding_rows(rows, multiple) == extra
    padded = with_masked_rows(columns, extra)
    assert padded["input_ids"].shape[0] % multiple == 0
    assert padded["sample_mask"].sum() == rows
    assert padded["input_lengths"].min() == (1 if extra else 3)
    back = without_masked_rows(padded, rows)
    assert torch.equal(back["input_ids"], columns["input_ids"])
    assert back["names"] == columns["names"]


def test_minibatches_are_rounded_each() -> None:
    """Ten rows in mini-batches of five, on parts of four: 5 -> 8 twice, the masked rows at the end of each."""
    batch, whole = padded_minibatches(columns_of(10), 5, 4)
    assert whole == 8
    assert batch["sample_mask"].tolist() == [1.0] * 5 + [0.0] * 3 + [1.0] * 5 + [0.0] * 3
    real = batch["input_ids"][batch["sample_mask"] > 0]
    assert torch.equal(real, columns_of(10)["input_ids"])
    assert batch[FIRST_STEP_COLUMN].tolist() == [1.0] * 5 + [0.0] * 11


def test_groups_by_place() -> None:
    assert slots([3, 3, 9, 9], 2).tolist() == [0, 0, 1, 1]
    # One problem drawn twice in a row stays two groups; a group that lost a response is ragged.
    assert slots([3, 3, 3, 3, 5, 5], 2).tolist() == [0, 0, 1, 1, 2, 2]
    assert slots([3, 3, 3, 5, 5], 3).tolist() == [0, 0, 0, 1, 1]


def test_scattered_rows_are_refused() -> None:
    with pytest.raises(BatchFactsError, match="problem 3 are not side by side"):
        slots([3, 9, 3, 9], 2)


def test_nemo_rls_grouping_merges_equal_prompts() -> None:
    prompts = torch.tensor([[1, 2], [1, 2], [0, 4], [1, 2]])
    groups = equal_rows(prompts)
    assert groups[0] == groups[1] == groups[3] != groups[2]
