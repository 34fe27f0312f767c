"""Our problems as a data set of NeMo-RL's, and our rewards as an environment, for a recipe that names them.

    data:
      train:
        dataset_name: nemo_uecr.nemo.task.ProblemsDataset
        problems: ${uecr.data}
        seed: ${grpo.seed}
        tokenizer: ${policy.tokenizer.name}
        processor: math_hf_data_processor
        env_name: nemo_uecr
    env:
      nemo_uecr: ${uecr}

Either can be named without the other. Imported by NeMo-RL alone, where it and Ray are installed.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
import torch

from nemo_uecr.config.schema import RecipeDataConfig
from nemo_uecr.data.manifest import chosen_problems
from nemo_uecr.errors import ConfigError
from nemo_uecr.generation.engines import load_tokens
from nemo_uecr.generation.prompts import fitting_prompts
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.recipe import PROBLEM, section_of
from nemo_uecr.verifier.extract import opens_thought
from nemo_uecr.verifier.pool import ComparisonPool
from nemo_uecr.verifier.rewards import Outcome, Rewards, Sample, component_metrics

log = logging.getLogger(__name__)

OBSERVATION = {True: "Environment: correct", False: "Environment: incorrect"}


class ProblemsDataset(upstream.native("RawDataset")):  # type: ignore[misc]
    """The problems of a run as NeMo-RL's message rows, the question already in the prompt template."""

    processor: Any

    def __init__(self, problems: Mapping[str, Any], seed: int, tokenizer: str, **unread: Any) -> None:
        """Read what the section `uecr.data`, here ``problems``, names; too long prompts are refused or dropped."""
        from datasets import Dataset

        data: Any = RecipeDataConfig(**problems)
        chosen = chosen_problems(data, seed)
        fitting = fitting_prompts(load_tokens(tokenizer).tokenizer, chosen, data)
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
                for problem in (chosen[place] for place in fitting)
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
    made["extra_env_info"] = columns | known | {PROBLEM: made["idx"]}
    return made


def said(role: str, turns: Sequence[Mapping[str, object]]) -> str:
    """The text of a role's turns."""
    return "".join(str(turn["content"]) for turn in turns if turn["role"] == role)


class RewardEnvironmentImpl:
    """The rewards of the local back end, as an environment of one turn."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        """Start the functions of the section `uecr`; comparison processes start when they are first needed."""
        section = section_of({"uecr": cfg})
        if section.reward is None:
            raise ConfigError("uecr.reward: missing; expected the rewards of this environment, such as math")
        self._pool = ComparisonPool(workers=section.verifier_workers)
        self._dataset = "" if section.data is None else section.data.train
        workers = section.verifier_workers
        self._rewards = Rewards(section.reward, correct_at=section.correct_at, pool=self._pool, copies=workers)
        self._outcomes: list[Outcome] = []
        self._lock = threading.Lock()
        self._steps = 0

    def step(
        self, message_log_batch: Sequence[Sequence[Mapping[str, object]]], metadata: Sequence[Mapping[str, Any]]
    ) -> Any:
        """Judge the assistant's turn of each conversation; every conversation ends.

        The synchronous loop calls it once a step; the asynchronous one with single responses, many at a time.
        """
        texts = [said("assistant", turns) for turns in message_log_batch]
        prompts = [said("user", turns) for turns in message_log_batch]
        samples = [
            Sample(
                id=f"row {row} of the step's {len(metadata)}, question {about.get('prompt', prompt)!r:.80}",
                prompt=about.get("prompt", prompt),
                text=text,
                whole=text,  # NeMo-RL removes special tokens
                token_ids=None,  # not among what NeMo-RL hands on
                answer=str(about["ground_truth"]),
                columns=about.get("columns", about),
                dataset=self._dataset,
                thinking=opens_thought(prompt),
            )
            for row, (prompt, about, text) in enumerate(zip(prompts, metadata, texts, strict=True))
        ]
        with self._lock:
            self._steps += 1
            step = self._steps
        outcomes = self._rewards.judge(samples, step=step)
        with self._lock:
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
        with self._lock:
            outcomes, self._outcomes = self._outcomes, []
        return component_metrics(outcomes)

    def readers_of_the_step(self) -> list[str]:
        """Rewards that ask for the step's number."""
        return self._rewards.readers_of_the_step

    def shutdown(self) -> None:
        """End the processes."""
        self._rewards.close()
        self._pool.close()


#: Calls at a time, most of which wait for a process of the verifier's or of a function's.
CONCURRENCY = 64
#: By its name the driver asks for the components of rewards.
RewardEnvironment: Any = ray.remote(
    name=upstream.ENVIRONMENT_ACTOR, max_restarts=-1, max_task_retries=-1, max_concurrency=CONCURRENCY
)(RewardEnvironmentImpl)
