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
from nemo_uecr.generation.conversation import Bridge
from nemo_uecr.generation.engines import load_tokens
from nemo_uecr.generation.environments import Environment, Episode
from nemo_uecr.generation.prompts import ChatSettings, fitting_prompts
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.recipe import PROBLEM, UecrSection, section_of
from nemo_uecr.reproducible import derive
from nemo_uecr.steps.metrics import episode_metrics
from nemo_uecr.verifier.extract import opens_thought
from nemo_uecr.verifier.pool import ComparisonPool
from nemo_uecr.verifier.rewards import Outcome, Rewards, Sample, component_metrics
from nemo_uecr.verifier.user_code import Failure, Failures

log = logging.getLogger(__name__)

#: A conversation of NeMo-RL's, turn by turn.
Log = Sequence[Mapping[str, object]]
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
    """The rewards of the local back end, as an environment; of several turns where the section names one."""

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
        self._game = None if section.environment is None else Game(section)

    def step(self, message_log_batch: Sequence[Log], metadata: Sequence[Mapping[str, Any]]) -> Any:
        """Judge the assistant's turn of each conversation that ends; without an environment every one does.

        The synchronous loop calls it once a turn; the asynchronous one, and vLLM's asynchronous engine, with single
        responses, many at a time.
        """
        if self._game is None:
            found = self._judge(message_log_batch, metadata)
            said_ = [{"role": "environment", "content": OBSERVATION[each.correct]} for each in found]
            return _returned(said_, metadata, [each.reward for each in found], [True] * len(found))
        observations, told, over = self._game.answer(message_log_batch, metadata)
        ended = [row for row, each in enumerate(over) if each]
        rewards = [0.0] * len(over)
        if ended:
            found = self._judge([message_log_batch[row] for row in ended], [told[row] for row in ended])
            for row, each in zip(ended, found, strict=True):
                rewards[row] = each.reward
        return _returned(observations, told, rewards, over)

    def _judge(self, logs: Sequence[Log], metadata: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """The outcomes of these conversations; of several turns the last is judged."""
        texts = [str(turns[-1]["content"]) for turns in logs]
        prompts = [said("user", turns) for turns in logs]
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
                thinking=opens_thought(str(turns[-2]["content"]) if len(turns) > 1 else prompt),
                turns=() if self._game is None else self._game.messages(turns),
                episode=None if self._game is None else self._game.outcome(about),
            )
            for row, (turns, prompt, about, text) in enumerate(zip(logs, prompts, metadata, texts, strict=True))
        ]
        with self._lock:
            self._steps += 1
            step = self._steps
        outcomes = self._rewards.judge(samples, step=step)
        with self._lock:
            self._outcomes += outcomes
        return outcomes

    def components(self) -> dict[str, float]:
        """Metrics of the components, and of the environment, since the last call."""
        with self._lock:
            outcomes, self._outcomes = self._outcomes, []
        return component_metrics(outcomes) | ({} if self._game is None else self._game.metrics())

    def readers_of_the_step(self) -> list[str]:
        """Rewards that ask for the step's number."""
        return self._rewards.readers_of_the_step

    def shutdown(self) -> None:
        """End the processes."""
        self._rewards.close()
        self._pool.close()
        if self._game is not None:
            self._game.close()


#: The key of an episode's number in what NeMo-RL keeps of a conversation for us.
EPISODE = "uecr_episode"


class Game:
    """The user's environment inside NeMo-RL, whose episodes go on from call to call."""

    def __init__(self, section: UecrSection) -> None:
        """Start it, and take what stands between turns from the chat template."""
        settings, data = section.environment, section.data
        if settings is None or data is None or section.tokenizer is None:
            raise ConfigError("uecr.environment: expected uecr.data and uecr.tokenizer beside it")
        self._environment = Environment(settings)
        if self._environment.tools:
            self._environment.close()
            raise ConfigError(
                f"uecr.environment.call: {settings.call} has typed methods, which NeMo-RL's prompts do not show to the "
                "student; write a class with step(text)"
            )
        self._tokens = load_tokens(section.tokenizer)
        chat = ChatSettings.of(data.model_dump())
        self._bridge = Bridge(self._tokens, chat, settings.role)
        self._episodes: dict[int, Episode] = {}
        self._ended: list[Episode] = []
        self._begun = 0
        self._lock = threading.Lock()  # calls come many at a time
        self._failures: dict[int, Failures] = {}  # by the number of an episode, of those that began with it

    def answer(
        self, logs: Sequence[Log], metadata: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[bool]]:
        """What each student reads next, what NeMo-RL keeps of the episode, and whether it is over."""
        told = self._numbered(metadata)
        episodes = [self._episodes[about[EPISODE]] for about in told]
        failures = self._failures[told[0][EPISODE]]
        going = [row for row, each in enumerate(episodes) if not each.over and not told[row][upstream.TURN]["cut"]]
        texts = [str(logs[row][-1]["content"]) for row in going]
        found = self._environment.step([episodes[row] for row in going], texts, failures)
        observations: list[dict[str, Any]] = [{"role": "environment", "content": ""} for _ in logs]
        over = [True] * len(logs)
        for row, observation in zip(going, found, strict=True):
            turn, last = told[row][upstream.TURN], len(episodes[row].texts) == self._environment.settings.max_turns
            if observation is None or last or not self._bridge.can_follow([turn["last"]]):
                continue
            ids = list(self._bridge.ids([turn["last"]], observation))
            text = self._tokens.tokenizer.decode(ids)
            observations[row] = {"role": "environment", "content": text, "token_ids": ids}
            over[row] = len(ids) >= turn["left"]  # NeMo-RL cuts the observation, and the response is truncated
        ended = [each for each, last in zip(episodes, over, strict=True) if last]
        self._environment.end(ended, failures)
        for each in ended:
            self._failures.pop(each.number).end()
        with self._lock:
            self._ended += ended
        return observations, told, over

    def _numbered(self, metadata: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What NeMo-RL knows of each conversation, with the number of its episode, which begins if it is new."""
        told, new = [dict(about) for about in metadata], list[Episode]()
        for about in told:
            if EPISODE not in about:
                # NeMo-RL tells neither step nor seed; equal prompts may be several problems, each a game of its own.
                seed = derive(0, "environment", str(about.get("prompt")), str(about.get(PROBLEM))) % 2**31
                columns = {name: each for name, each in about.get("columns", about).items() if name != upstream.TURN}
                with self._lock:
                    about[EPISODE], self._begun = self._begun, self._begun + 1
                new.append(Episode(f"episode {about[EPISODE]}", about[EPISODE], columns, seed))
                self._episodes[about[EPISODE]] = new[-1]
        if new:
            failures = self._environment.failures(len(new))
            self._failures |= dict.fromkeys((each.number for each in new), failures)
            if any(self._environment.begin(new, failures)):
                raise ConfigError(
                    f"environment {self._environment.settings.label}: reset returned a text, for which NeMo-RL's "
                    "prompts have no place; write it into the question"
                )
        return told

    def messages(self, turns: Log) -> tuple[dict[str, str], ...]:
        """The turns after the prompt; what was observed is there as the student read it."""
        role = self._environment.settings.role
        roles = {"assistant": "assistant", "environment": "user" if role == "text" else role}
        return tuple({"role": roles[str(t["role"])], "content": str(t["content"])} for t in turns if t["role"] in roles)

    def outcome(self, about: Mapping[str, Any]) -> float | Failure:
        """The rewards of an episode that is over, which is then forgotten."""
        return self._episodes.pop(about[EPISODE]).outcome

    def metrics(self) -> dict[str, float]:
        """How the environment did since the last call."""
        with self._lock:
            ended, self._ended = self._ended, []
        return episode_metrics(ended)

    def close(self) -> None:
        """End its processes."""
        self._environment.close()


def _returned(
    observations: Sequence[Mapping[str, Any]],
    metadata: Sequence[Mapping[str, Any]],
    rewards: Sequence[float],
    over: Sequence[bool],
) -> Any:
    return upstream.native("EnvironmentReturn")(
        observations=list(observations),
        metadata=list(metadata),
        next_stop_strings=[None] * len(rewards),
        rewards=torch.tensor(rewards),
        terminateds=torch.tensor(over, dtype=torch.float32),
        answers=None,
    )


#: Calls at a time, most of which wait for a process of the verifier's or of a function's.
CONCURRENCY = 64
#: By its name the driver asks for the components of rewards.
RewardEnvironment: Any = ray.remote(
    name=upstream.ENVIRONMENT_ACTOR, max_restarts=-1, max_task_retries=-1, max_concurrency=CONCURRENCY
)(RewardEnvironmentImpl)
