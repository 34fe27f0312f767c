"""Our verifier as a NeMo-RL environment: the same verdicts and rewards as in the local back end.

`register` makes it known under the name `ENVIRONMENT`, which a data set's ``env_name`` and the section ``env`` name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from nemo_uecr.nemo import upstream
from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import ComparisonPool, check_conversations

ENVIRONMENT = "nemo_uecr_math"
ACTOR = "nemo_uecr.nemo.verifier_actor.VerifierEnvironment"
OBSERVATION = {True: "Environment: correct", False: "Environment: incorrect"}


class VerifierEnvironmentImpl:
    """The environment without Ray."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        """Start ``num_workers`` comparison processes when they are first needed."""
        self._pool = ComparisonPool(workers=int(cfg["num_workers"]))
        self._verdicts: Counter[str] = Counter()

    def step(
        self,
        message_log_batch: Sequence[Sequence[Mapping[str, object]]],
        metadata: Sequence[Mapping[str, Any]],
        return_extracted_answer: bool = False,
    ) -> Any:
        """Judge each conversation's answer against ``metadata[...]["ground_truth"]``; every conversation ends."""
        checked = check_conversations(message_log_batch, [str(each["ground_truth"]) for each in metadata], self._pool)
        self._verdicts.update(outcome.verdict.value for outcome in checked)
        rewards_B = torch.tensor([outcome.reward for outcome in checked])
        return upstream.environment_return()(
            observations=[{"role": "environment", "content": OBSERVATION[outcome.reward > 0]} for outcome in checked],
            metadata=list(metadata),
            next_stop_strings=[None] * len(checked),
            rewards=rewards_B,
            terminateds=torch.ones_like(rewards_B),
            answers=[outcome.extracted for outcome in checked] if return_extracted_answer else None,
        )

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, float]]:
        """Share of correct responses, and of every verdict since the last call."""
        rewards_B = batch["rewards"] * batch["is_end"]
        total = max(1, sum(self._verdicts.values()))
        shares = {f"verdict/{verdict.value}": self._verdicts[verdict.value] / total for verdict in Verdict}
        self._verdicts.clear()
        return batch, {"accuracy": float(rewards_B.float().mean()), **shares}

    def shutdown(self) -> None:
        """End the comparison processes."""
        self._pool.close()


def register() -> None:
    """Make the environment known to NeMo-RL, to be run by this Python."""
    upstream.register_environment(ENVIRONMENT, ACTOR)
