"""What a trained step leaves behind, without NeMo-RL: each count that is off is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.core.methods import Advantages
from nemo_uecr.nemo.loss import PREFIX
from nemo_uecr.nemo.score_checks import BatchFactsError
from nemo_uecr.nemo.step import StepContext
from nemo_uecr.nemo.telemetry import check_step_counts
from tests.config.shipped import CONFIGS, GRPO

PROMPTS, GROUP, TOKENS = 4, 8, 3
ROWS = PROMPTS * GROUP
DIFFERENT = [problem for problem in range(PROMPTS) for _ in range(GROUP)]


def step(problems: list[int], grouping: str = "paper") -> tuple[Any, Any, Any]:
    """Context, columns and result of a step in which nothing was lost."""
    given = [f"rollout.prompts_per_step={PROMPTS}", f"rollout.responses_per_prompt={GROUP}"]
    changes = [*GRPO, *given, f"train.minibatch_responses={ROWS // 2}", f"conventions.grouping={grouping}"]
    context: Any = StepContext(load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", changes), None, completed_steps=0)
    context.outcome = SimpleNamespace(
        record=SimpleNamespace(
            problems=problems, group_B=torch.tensor(problems), truncated_B=torch.zeros(ROWS),
            mask_BT=torch.ones(ROWS, TOKENS, dtype=torch.bool),
        ),
        advantages=Advantages(torch.zeros(ROWS, TOKENS)),
    )  # fmt: skip
    data = {"token_mask": torch.ones(ROWS, TOKENS), "sample_mask": torch.ones(ROWS)}
    metrics = {"num_valid_samples": [ROWS / 2], f"{PREFIX}trained_tokens": [ROWS * TOKENS / 2]}
    result = {"all_mb_metrics": metrics, "loss": torch.zeros(2)}
    return context, data, result


@pytest.mark.parametrize("grouping", ["paper", "nemo_rl"])
def test_a_lost_response_or_one_prompt_in_every_place_is_found(grouping: str) -> None:
    """Eight responses to each problem but two, which have nine and seven."""
    check_step_counts(*step(DIFFERENT, grouping))
    with pytest.raises(BatchFactsError, match="1 different problems; expected 4"):
        check_step_counts(*step([5] * ROWS, grouping))
    problems = list(DIFFERENT)
    problems[GROUP] = 0
    with pytest.raises(BatchFactsError, match=r"9 responses to one problem; expected 8|5 prompt groups; expected 4"):
        check_step_counts(*step(problems, grouping))


def test_what_was_trained_is_counted_to_one() -> None:
    def refused(message: str) -> None:
        with pytest.raises(BatchFactsError, match=message):
            check_step_counts(context, data, result)

    context, data, result = step(DIFFERENT)
    result["all_mb_metrics"][f"{PREFIX}trained_tokens"] = [(ROWS * TOKENS - 1) / 2]
    refused("95 tokens in the workers' losses; expected 96")
    context, data, result = step(DIFFERENT)
    result["all_mb_metrics"]["num_valid_samples"] = [(ROWS - 1) / 2]
    refused("31 responses in the workers' losses; expected 32")
    context, data, result = step(DIFFERENT)
    result["loss"] = torch.zeros(1)
    refused("1 optimizer steps; expected 2")
    context, data, result = step(DIFFERENT)
    data["sample_mask"][3] = 0.0
    refused("31 responses trained; expected 32")
