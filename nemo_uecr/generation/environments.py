"""Environments: a user's class that answers the student's turns, in processes that can be killed.

An episode is a function of its seed and of the student's texts: where a process was killed, the next one plays the
others that it held again.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nemo_uecr.errors import ConfigError
from nemo_uecr.reproducible import derive
from nemo_uecr.verifier.user_code import Failure, Failures, UserProcess, singles

if TYPE_CHECKING:
    from nemo_uecr.config.schema import EnvironmentConfig
    from nemo_uecr.data.problems import Problem

WORKER = "nemo_uecr.generation.environment_worker"
#: Characters of an episode's turns that a message has, its last ones.
SAID = 200


@dataclass
class Episode:
    """One response's game."""

    id: str  # the response's name, in messages and in the process
    number: int  # which of the processes plays it
    columns: Mapping[str, object]  # the problem's row
    seed: int  # the same for the responses to a prompt, so that they play the same game
    texts: list[str] = field(default_factory=list)  # the student's turns so far
    reward: float = 0.0  # the sum of its rewards so far
    failure: Failure | None = None  # why it ended without an answer
    calls: int = 0  # of tools
    errors: list[str] = field(default_factory=list)  # why some of them failed
    over: bool = False  # the environment ended it, or failed

    @property
    def outcome(self) -> float | Failure:
        """What the reward `environment` is."""
        return self.reward if self.failure is None else self.failure


def episodes_of(names: Sequence[str], problems: Sequence[Problem], seed: int, *about: str | int) -> list[Episode]:
    """An episode for each response, by its name; those of a problem have one seed, of the run's and of ``about``."""
    seeds = [derive(seed, "environment", *about, problem.id) % 2**31 for problem in problems]
    return [
        Episode(name, row, problem.columns, own)
        for row, (name, problem, own) in enumerate(zip(names, problems, seeds, strict=True))
    ]


class Environment:
    """A user's class in several processes, which share the episodes of a step."""

    def __init__(self, settings: EnvironmentConfig) -> None:
        """Start the first process; the others start when they are needed."""
        self.settings = settings
        first = self._started(described=True)
        self._processes: dict[int, UserProcess] = {0: first}
        self._locks = [threading.Lock() for _ in range(settings.processes)]
        self._singles = singles()
        self.columns: Sequence[str] = first.hello["columns"]
        self._reads: Sequence[str] | None = first.hello["reads"]
        #: Whether the class gives rewards, as far as its code shows.
        self.rewards: bool = first.hello["rewards"]
        #: What was warned of, which is told once.
        self.warned = set[str]()
        #: The JSON schemas of the tools, for the chat template; none in gym's style.
        self.tools: tuple[Mapping[str, Any], ...] = tuple(first.hello["tools"])

    def _started(self, *, described: bool) -> UserProcess:
        own = {"call": self.settings.call, "args": self.settings.args, "described": described}
        return UserProcess(WORKER, own, key="environment", timeout_s=self.settings.timeout_s)

    def check_columns(self, there: Collection[str]) -> None:
        """Refuse a class whose `reset` has a parameter that is no column of the problems."""
        if lost := sorted(set(self.columns) - set(there)):
            name = self.settings.label
            raise ConfigError(f"environment {name} asks for {lost[0]}; the problems have {', '.join(there)}")

    def game(self, problem: Problem) -> str:
        """What two rows that are the same game share."""
        return problem.game(self._reads)

    def failures(self, responses: int) -> Failures:
        """For the episodes of so many responses."""
        return Failures(f"environment {self.settings.label}", responses, self._singles)

    def begin(self, episodes: Sequence[Episode], failures: Failures) -> list[str | None]:
        """Begin the episodes; what `reset` returned for the student to read with the question, in order."""
        found = self._each([(episode, _begin(episode)) for episode in episodes], failures)
        return [each.get("observation") for each in found]

    def step(
        self, episodes: Sequence[Episode], texts: Sequence[str], failures: Failures
    ) -> list[tuple[str, ...] | None]:
        """Take each episode's next turn; what its student reads next, in order, None where it is over."""
        asked = [(episode, _step(episode, text)) for episode, text in zip(episodes, texts, strict=True)]
        found = self._each(asked, failures)
        observations: list[tuple[str, ...] | None] = []
        for episode, text, each in zip(episodes, texts, found, strict=True):
            episode.texts.append(text)
            episode.reward += each.get("reward", 0.0)
            episode.calls += each.get("calls", 0)
            episode.errors += each.get("errors", [])
            said = each.get("observation")
            episode.over = said is None
            observations.append(None if said is None else tuple(said))
        return observations

    def end(self, episodes: Sequence[Episode], failures: Failures) -> None:
        """End episodes that a limit ended: a tool's class has its reward, and all release what they hold."""
        open_ = [episode for episode in episodes if not episode.over]
        for episode, each in zip(open_, self._each([(one, _end(one)) for one in open_], failures), strict=True):
            episode.reward += each.get("reward", 0.0)

    def _each(self, asked: Sequence[tuple[Episode, Mapping[str, Any]]], failures: Failures) -> list[Mapping[str, Any]]:
        """Answers in order, an empty one where the class failed; each process answers its episodes one by one."""
        own: dict[int, list[int]] = {}
        for place, (episode, _) in enumerate(asked):
            own.setdefault(episode.number % self.settings.processes, []).append(place)
        answers: list[Mapping[str, Any]] = [{}] * len(asked)
        stopped = threading.Event()

        def play(number: int) -> None:
            for place in own[number]:
                if stopped.is_set():
                    return
                episode, request = asked[place]
                try:
                    found = self._ask(number, episode, request)
                    if isinstance(found, Failure):
                        found = replace(found, reason=f"{_said(episode, request)}\n{found.reason}")
                    failures.note(episode.id, found)
                except BaseException:
                    stopped.set()
                    raise
                if isinstance(found, Failure):
                    episode.failure, episode.over = found, True
                else:
                    answers[place] = found

        if len(own) == 1:
            play(next(iter(own)))
        else:
            with ThreadPoolExecutor(max(1, len(own))) as threads:
                list(threads.map(play, own))
        return answers

    def _ask(self, number: int, episode: Episode, request: Mapping[str, Any]) -> Any:
        with self._locks[number]:
            if number not in self._processes:
                self._processes[number] = self._started(described=False)
            process = self._processes[number]
            found = process.answer(request)
            if not isinstance(found, Failure) and "unknown" in found:  # its process was killed: play it again
                for each in (_begin(episode), *(_step(episode, text) for text in episode.texts), request):
                    found = process.answer(each)
                    if isinstance(found, Failure):
                        break
            return found

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.close()


def _said(episode: Episode, request: Mapping[str, Any]) -> str:
    """The student's turns up to a request, the latest in full length, for a message."""
    turns = [*episode.texts, *([request["text"]] if "text" in request else [])]
    told = ", ".join(map(repr, turns))
    told = told if len(told) <= SAID else f"... {told[-SAID:]}"
    return f"the student's turns: {told}" if turns else "before the student's first turn"


def tools_of(settings: EnvironmentConfig | None) -> tuple[Mapping[str, Any], ...]:
    """The schemas of an environment's tools, for a prompt that is made without it being played."""
    if settings is None:
        return ()
    with closing(Environment(settings)) as environment:
        return environment.tools


def _begin(episode: Episode) -> Mapping[str, Any]:
    return {"do": "begin", "id": episode.id, "seed": episode.seed, "columns": dict(episode.columns)}


def _step(episode: Episode, text: str) -> Mapping[str, Any]:
    return {"do": "step", "id": episode.id, "text": text}


def _end(episode: Episode) -> Mapping[str, Any]:
    return {"do": "end", "id": episode.id}
