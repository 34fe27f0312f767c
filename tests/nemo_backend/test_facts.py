"""The audit of a step, without NeMo-RL: each count that is off is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.nemo.errors import BatchFactsError
from nemo_uecr.nemo.estimator import slots
from nemo_uecr.nemo.facts import AuditedLogger, check_facts
from nemo_uecr.nemo.loss import PREFIX

PROMPTS, GROUP, TOKENS = 4, 8, 3
ROWS = PROMPTS * GROUP


def step(problems: list[int], grouping: str) -> tuple[Any, Any, Any]:
    """Context, columns and result of a step in which nothing was lost."""
    batch = SimpleNamespace(
        responses=len(problems), task_reward_B=torch.zeros(len(problems)), group_B=slots(problems, GROUP)
    )
    outcome = SimpleNamespace(
        batch=batch, truncated_B=torch.zeros(ROWS), unique_prompts=len(set(problems)),
        most_responses=max(problems.count(problem) for problem in problems),
    )  # fmt: skip
    spec = SimpleNamespace(
        responses=ROWS, prompts_per_step=PROMPTS, responses_per_prompt=GROUP, overlong_filter=False,
        optimizer_steps=2, conventions=SimpleNamespace(grouping=grouping),
    )  # fmt: skip
    data = {"token_mask": torch.ones(ROWS, TOKENS), "sample_mask": torch.ones(ROWS)}
    metrics = {"num_valid_samples": [ROWS / 2], f"{PREFIX}trained_tokens": [ROWS * TOKENS / 2]}
    result = {"all_mb_metrics": metrics, "loss": torch.zeros(2)}
    return SimpleNamespace(spec=spec, outcome=outcome, completed_steps=0), data, result


def different() -> list[int]:
    return [problem for problem in range(PROMPTS) for _ in range(GROUP)]


@pytest.mark.parametrize("grouping", ["paper", "nemo_rl"])
def test_one_prompt_in_every_place_is_found(grouping: str) -> None:
    check_facts(*step(different(), grouping))
    with pytest.raises(BatchFactsError, match="number of different problems is 1; expected 4"):
        check_facts(*step([5] * ROWS, grouping))


@pytest.mark.parametrize("grouping", ["paper", "nemo_rl"])
def test_a_lost_response_is_found(grouping: str) -> None:
    """Eight responses to each problem but two, which have nine and seven."""
    problems = different()
    problems[GROUP] = 0
    with pytest.raises(BatchFactsError, match=r"to one problem is 9; expected 8|prompt groups is 5; expected 4"):
        check_facts(*step(problems, grouping))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (f"{PREFIX}trained_tokens", [(ROWS * TOKENS - 1) / 2], "tokens in the workers' losses is 95; expected 96"),
        ("num_valid_samples", [(ROWS - 1) / 2], "responses in the workers' losses is 31; expected 32"),
    ],
)
def test_what_the_workers_trained_is_counted_to_one(name: str, value: list[float], message: str) -> None:
    context, data, result = step(different(), "paper")
    result["all_mb_metrics"][name] = value
    with pytest.raises(BatchFactsError, match=message):
        check_facts(context, data, result)


def test_a_lost_optimizer_step_is_found() -> None:
    context, data, result = step(different(), "paper")
    with pytest.raises(BatchFactsError, match="number of optimizer steps is 1; expected 2"):
        check_facts(context, data, result | {"loss": torch.zeros(1)})


def test_masked_rows_are_counted() -> None:
    context, data, result = step(different(), "paper")
    data["sample_mask"][3] = 0.0
    with pytest.raises(BatchFactsError, match="number of responses trained is 31; expected 32"):
        check_facts(context, data, result)


def test_the_loops_own_step_is_compared() -> None:
    seen: list[int] = []
    native = SimpleNamespace(log_metrics=lambda metrics, step, prefix: seen.append(step), close=lambda: "closed")
    logger = AuditedLogger(native)
    logger.log_metrics({"count/global_steps": 7.0}, 7, prefix="train")
    logger.log_metrics({"accuracy": 0.5}, 9, prefix="validation")
    assert seen == [7, 9]
    assert logger.close() == "closed"
    with pytest.raises(BatchFactsError, match="NeMo-RL logs step 8, 7 were trained here"):
        logger.log_metrics({"count/global_steps": 7.0}, 8, prefix="train")
