"""The task as NeMo-RL sees it: our problems as a data set and our rewards as an environment, under dotted names.

Imported by NeMo-RL alone, where it and Ray are installed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
import torch

from nemo_uecr.config.nemo_schema import NemoDataConfig
from nemo_uecr.config.schema import CallReward, VerifierReward
from nemo_uecr.data.manifest import chosen_problems
from nemo_uecr.nemo import upstream
from nemo_uecr.verifier.extract import opens_thought
from nemo_uecr.verifier.pool import ComparisonPool
from nemo_uecr.verifier.rewards import Outcome, Rewards, Sample, component_metrics

OBSERVATION = {True: "Environment: correct", False: "Environment: incorrect"}


class ProblemsDataset(upstream.native("RawDataset")):  # type: ignore[misc]
    """The problems of a run as NeMo-RL's message rows, the question already in the prompt template."""

    processor: Any

    def __init__(self, problems: Mapping[str, Any], seed: int, dropped: Sequence[int], **unread: Any) -> None:
        """Read the problems that our section `data`, here ``problems``, names, without those at the dropped places."""
        from datasets import Dataset

        data = NemoDataConfig(**problems)
        chosen = [problem for place, problem in enumerate(chosen_problems(data, seed)) if place not in set(dropped)]
        self.task_name = "problems"
        self.val_dataset = None
        self.dataset = Dataset.from_list(
            [
                {
                    "messages": [
                        {"role": "user", "content": problem.turn(data.prompt_template)},
                        {"role": "assistant", "content": problem.answer},
                    ],
                    "task_name": self.task_name,
                    "columns": json.dumps(problem.columns, default=str),  # types may differ from row to row
                }
                for problem in chosen
            ]
        )

    def set_processor(self) -> None:
        """NeMo-RL's own; what it makes of a row also carries the columns."""
        super().set_processor()
        self.processor = functools.partial(with_columns, self.processor)


def with_columns(process: Callable[..., Any], datum: Mapping[str, Any], *args: Any, **given: Any) -> Any:
    """What NeMo-RL's processor makes of a row, with the problem's columns for the environment."""
    made = process(datum, *args, **given)
    columns = json.loads(datum["columns"])
    known = made["extra_env_info"] | {"prompt": datum["messages"][0]["content"], "columns": columns}
    made["extra_env_info"] = columns | known
    return made


def said(role: str, turns: Sequence[Mapping[str, object]]) -> str:
    """The text of a role's turns."""
    return "".join(str(turn["content"]) for turn in turns if turn["role"] == role)


class RewardEnvironmentImpl:
    """The rewards of the local back end, as an environment of one turn."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        """Start the functions; ``num_workers`` comparison processes start when they are first needed."""
        self._pool, self._dataset = ComparisonPool(workers=int(cfg["num_workers"])), str(cfg["dataset"])
        settings = [CallReward(**each) if "call" in each else VerifierReward(**each) for each in cfg["reward"]]
        self._rewards = Rewards(settings, correct_at=cfg["correct_at"], pool=self._pool)
        self._outcomes: list[Outcome] = []
        self._steps = 0

    def step(
        self, message_log_batch: Sequence[Sequence[Mapping[str, object]]], metadata: Sequence[Mapping[str, Any]]
    ) -> Any:
        """Judge the assistant's turn of each conversation; every conversation ends."""
        texts = [said("assistant", turns) for turns in message_log_batch]
        samples = [
            Sample(
                id=f"row {row} of the step's {len(metadata)}, question {about['prompt']!r:.80}",
                prompt=about["prompt"],
                text=text,
                whole=text,  # NeMo-RL removes special tokens
                token_ids=None,  # not among what NeMo-RL hands on
                answer=str(about["ground_truth"]),
                columns=about["columns"],
                dataset=self._dataset,
                thinking=opens_thought(said("user", turns)),
            )
            for row, (turns, about, text) in enumerate(zip(message_log_batch, metadata, texts, strict=True))
        ]
        self._steps += 1
        outcomes = self._rewards.judge(samples, step=self._steps)
        self._outcomes += outcomes
        rewards_B = torch.tensor([outcome.reward for outcome in outcomes])
        return upstream.native("EnvironmentReturn")(
            observations=[{"role": "environment", "content": OBSERVATION[outcome.correct]} for outcome in outcomes],
            metadata=list(metadata),
            next_stop_strings=[None] * len(outcomes),
            rewards=rewards_B,
            terminateds=torch.ones_like(rewards_B),
            answers=None,
        )

    def components(self) -> dict[str, float]:
        """Metrics of the components since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return component_metrics(outcomes)

    def shutdown(self) -> None:
        """End the processes."""
        self._rewards.close()
        self._pool.close()


RewardEnvironment: Any = ray.remote(max_restarts=-1, max_task_retries=-1)(RewardEnvironmentImpl)
