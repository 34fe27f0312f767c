"""The task as NeMo-RL sees it: our problems as a data set and our verifier as an environment, found by dotted names.

Imported by NeMo-RL alone, where it and Ray are installed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch

from nemo_uecr.config.nemo_schema import NemoDataConfig
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.preflight import chosen_problems
from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import ComparisonPool, check_conversations

OBSERVATION = {True: "Environment: correct", False: "Environment: incorrect"}


class ProblemsDataset(upstream.native("RawDataset")):  # type: ignore[misc]
    """The problems of a run as NeMo-RL's message rows, the question already in the prompt template."""

    def __init__(self, problems: Mapping[str, Any], seed: int, dropped: Sequence[int], **unread: Any) -> None:
        """Read what our section `data`, here ``problems``, asks for, but the dropped places; the rest is NeMo-RL's."""
        from datasets import Dataset

        data = NemoDataConfig(**problems)
        chosen = [problem for place, problem in enumerate(chosen_problems(data, seed)) if place not in set(dropped)]
        self.task_name = "problems"
        self.val_dataset = None
        self.dataset = Dataset.from_list(
            [
                {
                    "messages": [
                        {"role": "user", "content": data.prompt_template.replace("{question}", problem.question)},
                        {"role": "assistant", "content": problem.answer},
                    ],
                    "task_name": self.task_name,
                }
                for problem in chosen
            ]
        )


class VerifierEnvironmentImpl:
    """The verifier with the same verdicts and rewards as in the local back end."""

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
        return upstream.native("EnvironmentReturn")(
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


VerifierEnvironment: Any = ray.remote(max_restarts=-1, max_task_retries=-1)(VerifierEnvironmentImpl)
