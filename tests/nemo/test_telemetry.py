"""What a trained step leaves behind, without NeMo-RL: each count that is off is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.core.methods import Advantages
from nemo_uecr.demo.task import build_tokenizer
from nemo_uecr.nemo.loss import PREFIX
from nemo_uecr.nemo.score_checks import BatchFactsError
from nemo_uecr.nemo.step import StepContext
from nemo_uecr.nemo.telemetry import _texts, check_step_counts
from tests.nemo.made_recipe import made_settings

ROWS, TOKENS = 32, 3  # of the made recipe: 4 prompts, 8 responses each, two optimizer steps


def step(*, left: torch.Tensor | None = None) -> tuple[Any, Any, Any]:
    """Context, columns and result of a step in which nothing was lost; ``left`` [B] rows are left in the loss."""
    context: Any = StepContext(made_settings(9), None)
    left_B = torch.ones(ROWS) if left is None else left
    context.outcome = SimpleNamespace(
        record=SimpleNamespace(problems=range(ROWS), mask_BT=torch.ones(ROWS, TOKENS, dtype=torch.bool)),
        advantages=Advantages(torch.zeros(ROWS, TOKENS)), mask_BS=torch.ones(ROWS, TOKENS) * left_B[:, None],
    )  # fmt: skip
    data, rows = {"token_mask": torch.ones(ROWS, TOKENS), "sample_mask": left_B}, float(left_B.sum())
    metrics = {"num_valid_samples": [rows / 2], f"{PREFIX}trained_tokens": [rows * TOKENS / 2]}
    return context, data, {"all_mb_metrics": metrics, "loss": torch.zeros(2)}


def test_a_step_in_which_nothing_was_lost() -> None:
    """Also where NeMo-RL leaves responses out: of a prompt that was too long, or by its filter."""
    check_step_counts(*step())
    left = torch.ones(ROWS)
    left[3] = 0
    check_step_counts(*step(left=left))


def test_what_was_trained_is_counted_to_one() -> None:
    def refused(message: str) -> None:
        with pytest.raises(BatchFactsError, match=message):
            check_step_counts(context, data, result)

    context, data, result = step()
    context.outcome.record.problems = range(ROWS - 1)
    refused("31 responses generated; expected 32")
    context, data, result = step()
    result["all_mb_metrics"][f"{PREFIX}trained_tokens"] = [(ROWS * TOKENS - 1) / 2]
    refused("95 tokens in the workers' losses; expected 96")
    context, data, result = step()
    result["all_mb_metrics"]["num_valid_samples"] = [(ROWS - 1) / 2]
    refused("31 responses in the workers' losses; expected 32")
    context, data, result = step()
    result["loss"] = torch.zeros(1)
    refused("1 optimizer steps; expected 2")
    context, data, result = step()
    data["sample_mask"][3] = 0.0
    refused("31 responses trained; expected 32")


def test_the_texts_of_turns_stand_apart_and_games_are_named() -> None:
    tokenizer = build_tokenizer()
    ids = tokenizer("12+345", add_special_tokens=False)["input_ids"]
    sampled = [False, True, False, True, True, False]
    record: Any = SimpleNamespace(
        token_ids_BT=torch.tensor([ids]), mask_BT=torch.tensor([sampled]), problems=[7]
    )  # fmt: skip
    texts = _texts(record, tokenizer, played=True)
    assert texts == {"prompt_ids": [ids[:1]], "response": ["2\n34"], "asked": ["problem 7"]}
    assert "asked" not in _texts(record, tokenizer, played=False)
