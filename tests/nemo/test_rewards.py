"""Rewards and evaluation numbers inside the real NeMo-RL."""

from __future__ import annotations

import random

import pytest
import torch

from nemo_uecr.stats import average_at_k, pass_at_k

pytestmark = pytest.mark.usefixtures("nemo_rl")


def test_rewards_are_those_of_the_local_back_end() -> None:
    from nemo_uecr.nemo.task import VerifierEnvironmentImpl
    from nemo_uecr.verifier.pool import check_response

    prompt = {"role": "user", "content": "What is 2+3? Somebody wrote \\boxed{5}."}
    responses = ["so \\boxed{5}", "\\boxed{\\frac{10}{2}}", "\\boxed{6}", "five", "\\boxed{5=6}"]
    environment = VerifierEnvironmentImpl({"num_workers": 1})
    logs = [[prompt, {"role": "assistant", "content": text}] for text in responses]
    returned = environment.step(logs, [{"ground_truth": "5"}] * 5, return_extracted_answer=True)
    environment.shutdown()
    assert returned.rewards.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert returned.rewards.tolist() == [check_response(text, "5").reward for text in responses]
    assert returned.answers == ["5", "\\frac{10}{2}", "6", None, "5=6"]
    assert returned.terminateds.tolist() == [1.0] * 5
    assert returned.observations[0] == {"role": "environment", "content": "Environment: correct"}


@pytest.mark.parametrize("k", [1, 4])
def test_pass_at_k_and_avg_at_k_are_nemo_rls(k: int) -> None:
    from nemo_rl.evals.eval import eval_pass_k

    rng = random.Random(5)
    rows = [[float(rng.random() < share) for _ in range(12)] for share in (0.0, 0.1, 0.3, 0.6, 1.0, 0.05, 0.9)]
    theirs = eval_pass_k(torch.tensor(rows).flatten(), 12, k) / len(rows)  # it adds up, its caller divides
    assert pass_at_k(rows, k) == pytest.approx(theirs, abs=1e-6)
    if k == 1:
        assert average_at_k(rows) == pytest.approx(theirs, abs=1e-6)
