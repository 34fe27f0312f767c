"""The process in which a user's environment runs: one instance of the class for each episode that it plays.

In gym's style the class has ``step(text) -> (observation, reward, done)``. In TRL's style its public methods are tools
with typed parameters and docstrings, which the student calls as Qwen's chat templates write calls, and a turn without a
call ends the episode. Both may have ``reset(**columns)`` and ``close()``. Before each turn the global generators of
Python and NumPy are seeded, so that a class that draws from them is a function of seed and texts, too.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import random
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from types import MethodType
from typing import Any

from nemo_uecr import door
from nemo_uecr.errors import first_line
from nemo_uecr.reproducible import derive
from nemo_uecr.verifier.user_code import Loop, UnusableError, traceback_of, work

CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
EXPECTED = "a class with step(text), or with typed methods as tools"
#: Public methods of TRL's style that are no tools.
NO_TOOLS = ("reset", "close", "get_reward")
#: Lengths of what `step` may return: gym's four and gymnasium's five values, too.
LENGTHS = (3, 4, 5)
Record = Mapping[str, Any]


class UserEnvironment:
    """A class from a file, and its instances by episode."""

    def __init__(self, call: str, args: Record, *, described: bool) -> None:
        """Load ``FILE.py:CLASS`` and tell its style by its methods; where it is ``described``, tools have schemas."""
        self._kind: Any = door.load(call, expected=EXPECTED, fits=inspect.isclass).value
        name = call.rpartition(":")[2]
        self._call, self._args, self._loop, self._playing = call, args, Loop(), dict[str, _Episode]()
        methods = {n: each for n, each in inspect.getmembers(self._kind, inspect.isfunction) if not n.startswith("_")}
        step = methods.get("step")
        self.in_gym_style = step is not None and inspect.signature(step).return_annotation not in (str, "str")
        self.tools = [] if self.in_gym_style else [each for each in methods if each not in NO_TOOLS]
        if not self.in_gym_style and not self.tools:
            raise UnusableError(f"{name} has neither step(text) nor methods that could be tools")
        if bare := [each for each in self.tools if not inspect.getdoc(methods[each])]:
            raise UnusableError(
                f"{name}.{bare[0]} has no docstring, so that the student cannot know what the tool does"
            )
        accepted = inspect.signature(self._kind).parameters
        takes_all = any(each.kind is each.VAR_KEYWORD for each in accepted.values())
        if not takes_all and (unknown := sorted(args.keys() - accepted.keys())):
            raise UnusableError(f"{name} has no parameter {unknown[0]} (args); it has {', '.join(accepted) or 'none'}")
        if lacking := [each for each in _needed(accepted) if each not in args]:
            raise UnusableError(f"args lacks {lacking[0]}, for which {name} has no default")
        parameters = dict(inspect.signature(methods["reset"]).parameters) if "reset" in methods else {}
        parameters.pop("self", None)
        self._takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        self._names = parameters.keys()
        self.columns = sorted(set(_needed(parameters)) - {"seed"})
        #: The columns that decide which game it is; None: all of them.
        self.reads = None if self._takes_all else sorted(parameters.keys() - {"seed"})
        #: Whether it gives rewards, as far as its code shows.
        self.rewards = _step_rewards(step) if self.in_gym_style else _has_reward(self._kind)
        self.schemas = self._described() if described and self.tools else []

    def answer(self, request: Record) -> Record:
        """Begin an episode, take its next turn, or end it early."""
        key = request.get("id", "")
        if request["do"] in ("step", "end") and key not in self._playing:
            return {"unknown": True}  # of a process that was killed
        try:
            if request["do"] == "begin":
                return self._begin(key, request)
            return self._step(key, request["text"]) if request["do"] == "step" else self._end(key)
        except Exception as error:  # noqa: BLE001 - the user's class may raise anything
            self._playing.pop(key, None)
            reason = str(error) if isinstance(error, UnusableError) else traceback_of(error, __file__)
            return {"failed": reason if "\n" in reason else f"{self._call}: {reason}"}

    def _described(self) -> list[Record]:
        """The JSON schema of each tool, from its types and its docstring."""
        from transformers.utils import DocstringParsingException, TypeHintParsingException, get_json_schema

        made = []
        for name in self.tools:
            bound = MethodType(getattr(self._kind, name), self)  # its signature is without self
            try:
                made.append(get_json_schema(bound))
            except (DocstringParsingException, TypeHintParsingException) as error:
                wanted = "a type and a line under Args: for each parameter"
                raise UnusableError(f"{name}: {first_line(error)}; expected {wanted}") from error
        return made

    def _begin(self, key: str, request: Record) -> Record:
        seed = request["seed"]
        _seed_all(seed, turn=0)
        episode = self._playing[key] = _Episode(self._kind(**self._args), self._loop, self.tools, seed)
        given = {"seed": seed, **request["columns"]}
        own = {name: value for name, value in given.items() if self._takes_all or name in self._names}
        first = self._loop.awaited(episode.game.reset(**own)) if hasattr(episode.game, "reset") else None
        first = first[0] if isinstance(first, tuple) and first else first  # gymnasium returns (observation, info)
        if not isinstance(first, str | None):
            raise UnusableError(f"reset returned {first!r:.80}; expected a text or None")
        return {"observation": first or None}

    def _step(self, key: str, text: str) -> Record:
        said = self._playing[key].step(text)
        if said["observation"] is None:
            said["reward"] += self._end(key)["reward"]
        return said

    def _end(self, key: str) -> Record:
        return {"reward": self._playing.pop(key).end()}


class _Episode:
    """One instance of the user's class, in either style."""

    def __init__(self, game: Any, loop: Loop, tools: Sequence[str], seed: int) -> None:
        self.game, self._loop, self._seed, self._turn = game, loop, seed, 0
        self._tools: dict[str, Callable[..., Any]] = {name: getattr(game, name) for name in tools}

    def step(self, text: str) -> dict[str, Any]:
        """What the student reads next, None at the end, the turn's reward, and the calls of tools that failed."""
        self._turn += 1
        _seed_all(self._seed, self._turn)
        if self._tools:
            return self._call(text)
        found = self._loop.awaited(self.game.step(text))
        if not isinstance(found, tuple | list) or len(found) not in LENGTHS:
            raise UnusableError(f"step returned {found!r:.80}; expected (observation, reward, done)")
        observation, reward = found[0], _number(found[1])
        done = bool(found[2]) or (len(found) == LENGTHS[-1] and bool(found[3]))  # gymnasium: terminated or truncated
        if not isinstance(observation, str | None):
            raise UnusableError(
                f"step returned the observation {observation!r:.80}; expected a text, or None at the end"
            )
        over = done or observation is None
        return {"observation": None if over else [observation], "reward": reward}

    def _call(self, text: str) -> dict[str, Any]:
        results, errors = list[str](), list[str]()
        for call in CALL.findall(text.rpartition("</think>")[2]):
            try:
                asked = json.loads(call)
                tool = self._tools.get(asked["name"])
                if tool is None:
                    raise LookupError(f"no tool {asked['name']!r}; there are {', '.join(self._tools)}")
                result = self._loop.awaited(tool(**asked.get("arguments", {})))
                results.append(result if isinstance(result, str) else json.dumps(result, default=str))
            except Exception as error:  # noqa: BLE001 - mostly the student's fault, who reads what was wrong
                errors.append(f"{type(error).__name__}: {error}")
                results.append(json.dumps({"error": errors[-1]}))
        return {"observation": results or None, "reward": 0.0, "calls": len(results), "errors": errors}

    def end(self) -> float:
        """The reward of the whole episode in TRL's style; what the class holds is released."""
        reward = 0.0
        if self._tools:
            own = self.game.get_reward() if hasattr(self.game, "get_reward") else getattr(self.game, "reward", 0.0)
            reward = _number(self._loop.awaited(own))
        if hasattr(self.game, "close"):
            self._loop.awaited(self.game.close())
        return reward


def _needed(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Those without a default."""
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, each in parameters.items() if each.default is each.empty and each.kind not in starred]


def _has_reward(kind: type) -> bool:
    """A class in TRL's style has `get_reward`, or a `reward` that it has itself or some method of its sets."""
    own = (each.__code__.co_names for _, each in inspect.getmembers(kind, inspect.isfunction))
    return hasattr(kind, "get_reward") or hasattr(kind, "reward") or any("reward" in names for names in own)


def _step_rewards(step: Any) -> bool:
    """A step in gym's style gives rewards unless every return of its code has a 0 in their place."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(step)))
    except (OSError, TypeError, SyntaxError):  # compiled, or a text in it begins at the margin
        return True
    returned = [each.value for each in ast.walk(tree) if isinstance(each, ast.Return)]
    return not all(
        isinstance(each, ast.Tuple) and [one.value for one in each.elts[1:2] if isinstance(one, ast.Constant)] == [0]
        for each in returned
    )


def _seed_all(seed: int, turn: int) -> None:
    """Seed what public classes draw from that take no seed: other episodes draw from it in between."""
    own = derive(seed, "turn", turn) % 2**32
    random.seed(own)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(own)


def _number(value: Any) -> float:
    number = value.item() if hasattr(value, "item") else value  # of NumPy and torch
    if not isinstance(number, int | float) or not math.isfinite(number):
        raise UnusableError(f"the reward is {value!r:.80}; expected a finite number")
    return float(number)


def _hello(environment: UserEnvironment) -> Record:
    return {
        "columns": environment.columns, "reads": environment.reads, "rewards": environment.rewards,
        "tools": environment.schemas,
    }  # fmt: skip


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    pipe, seconds = Connection(int(sys.argv[1])), int(sys.argv[3])
    load = lambda: UserEnvironment(**settings)  # noqa: E731
    work(pipe, load, _hello, UserEnvironment.answer, file=__file__, seconds=seconds)
