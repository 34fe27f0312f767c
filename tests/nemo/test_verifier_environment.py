"""The verifier as an environment of the real NeMo-RL."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("nemo_rl")

PROMPT = {"role": "user", "content": "What is 2+3? Somebody wrote \\boxed{5}."}


def test_rewards_are_those_of_the_local_back_end() -> None:
    from nemo_uecr.nemo_adapter.verifier_environment import VerifierEnvironmentImpl
    from nemo_uecr.verifier.pool import check_response

    responses = ["so \\boxed{5}", "\\boxed{\\frac{10}{2}}", "\\boxed{6}", "five", "\\boxed{5=6}"]
    environment = VerifierEnvironmentImpl({"num_workers": 1})
    logs = [[PROMPT, {"role": "assistant", "content": text}] for text in responses]
    returned = environment.step(logs, [{"ground_truth": "5"}] * 5, return_extracted_answer=True)
    environment.shutdown()
    assert returned.rewards.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert returned.rewards.tolist() == [check_response(text, "5").reward for text in responses]
    assert returned.answers == ["5", "\\frac{10}{2}", "6", None, "5=6"]
    assert returned.terminateds.tolist() == [1.0] * 5
    assert returned.observations[0] == {"role": "environment", "content": "Environment: correct"}


@pytest.mark.usefixtures("ray_cluster")
def test_nemo_rl_creates_it_by_its_name() -> None:
    import ray

    from nemo_uecr.nemo_adapter.verifier_environment import ENVIRONMENT, register

    register()
    register()  # a second run in one process finds it there
    from nemo_rl.environments.utils import create_env

    actor = create_env(ENVIRONMENT, {"num_workers": 1})
    log = [PROMPT, {"role": "assistant", "content": "\\boxed{5}"}]
    assert ray.get(actor.step.remote([log], [{"ground_truth": "5"}])).rewards.tolist() == [1.0]
    ray.kill(actor)
