"""The verifier as an environment of the real NeMo-RL."""

from __future__ import annotations

import os
import sys

import pytest

SOURCE = os.environ.get("NEMO_RL_SOURCE")
pytestmark = [
    pytest.mark.nemo,
    pytest.mark.skipif(SOURCE is None, reason="NEMO_RL_SOURCE is not set; set it to NeMo-RL's source tree"),
]

PROMPT = {"role": "user", "content": "What is 2+3? Somebody wrote \\boxed{5}."}


@pytest.fixture(scope="module", autouse=True)
def nemo_rl_on_the_path() -> None:
    import typing

    import typing_extensions

    if sys.version_info < (3, 12):
        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc, assignment] # pydantic asks for it
    assert SOURCE is not None
    sys.path.insert(0, SOURCE)
    # The actor's process gets this process's variables.
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)


def test_rewards_are_those_of_the_local_back_end() -> None:
    from nemo_uecr.nemo_adapter.verifier_environment import VerifierEnvironmentImpl
    from nemo_uecr.verifier.equivalence import check_response

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


def test_nemo_rl_creates_it_by_its_name() -> None:
    import ray

    from nemo_uecr.nemo_adapter.verifier_environment import ENVIRONMENT, register

    register()
    from nemo_rl.environments.utils import create_env

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        actor = create_env(ENVIRONMENT, {"num_workers": 1})
        returned = ray.get(actor.step.remote([[PROMPT, {"role": "assistant", "content": "\\boxed{5}"}]],
                                             [{"ground_truth": "5"}]))  # fmt: skip
        assert returned.rewards.tolist() == [1.0]
        ray.kill(actor)
    finally:
        ray.shutdown()
