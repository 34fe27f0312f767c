"""The process in which a user's reward function runs: loads it, calls it in its style, checks what it returns.

TRL's style judges a batch: ``f(prompts, completions, completion_ids, **columns) -> list of numbers or None``.
verl's style judges one response: ``f(data_source, solution_str, ground_truth, extra_info) -> number, or dict with
"score"``. The names of the parameters decide which one it is.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from nemo_uecr import door
from nemo_uecr.verifier.user_code import Loop, UnusableError, traceback_of, work

TRL, VERL = {"prompts", "completions", "completion_ids"}, {"solution_str"}
#: What a function is given in either style; a TRL function's other parameters are columns of the problems.
GIVEN = {
    True: TRL | {"trainer_state", "log_extra", "log_metric"},
    False: {*VERL, "data_source", "ground_truth", "extra_info"},
}
#: How a function reads messages.
CONTENT = re.compile(r"""\[["']content["']\]""")
Record = Mapping[str, Any]
EXPECTED = "a function, or an instance with __call__, in TRL's or verl's style"


class UserReward:
    """A reward function from a file, called in its own style."""

    def __init__(self, call: str, args: Record, messages: bool) -> None:
        """Load ``FILE.py:FUNCTION``; ``messages``: a TRL function gets conversations instead of texts."""
        self._loop = Loop()
        name, found = call.rpartition(":")[2], door.load(call, expected=EXPECTED, fits=_is_function)
        function: Callable[..., Any] = found.value
        self._function = function
        self._args, self._messages = args, messages
        parameters = inspect.signature(function).parameters
        self._names = set(parameters)
        self.batched = not TRL.isdisjoint(parameters)
        plain = (each for each in parameters.values() if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
        asked = {each.name for each in plain if each.default is each.empty} - args.keys() - GIVEN[self.batched]
        self.columns = sorted(asked) if self.batched else []  # that the problems must have
        self.reads_step = self.batched and "trainer_state" in self._names
        self.reads_content = self.batched and CONTENT.search(found.source) is not None
        self._takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        if self.batched == (not VERL.isdisjoint(parameters)):
            raise UnusableError(
                f"{name}({', '.join(parameters)}) is in no known style; expected TRL's parameter completions, or "
                "verl's solution_str"
            )
        if asked and not self.batched:
            raise UnusableError(f"{name} needs {min(asked)}; expected a default, or a value in args")
        if not self._takes_all and (unknown := sorted(args.keys() - self._names)):
            raise UnusableError(f"{name} has no parameter {unknown[0]} (args); it has {', '.join(parameters)}")

    def judge(self, request: Record) -> dict[str, Any]:
        """The rewards of the samples, or what is wrong with them, or the traceback of the function."""
        samples = request["samples"]
        given = self._batch(samples, request["step"]) if self.batched else self._single(samples[0])
        given |= self._args
        try:
            own = {name: value for name, value in given.items() if self._takes_all or name in self._names}
            found = self._loop.awaited(self._function(**own))
            if isinstance(found, Mapping) and "score" not in found:
                return {"refused": f"returned a dict with {', '.join(map(str, found))}, expected a key score", "row": 0}
            if not self.batched:
                found = [found["score"] if isinstance(found, Mapping) else found]
            values: list[Any] = list(found) if hasattr(found, "__iter__") else [found]
            numbers = [value.item() if hasattr(value, "item") else value for value in values]  # of NumPy and torch
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            return {"failed": traceback_of(error, __file__)}
        if len(values) != len(samples):
            return {"refused": f"returned {len(values)} rewards for {len(samples)} responses", "row": 0}
        for row, number in enumerate(numbers):
            left = number is None and self.batched  # to the other rewards
            if not left and not (isinstance(number, int | float) and math.isfinite(number)):
                return {"refused": f"returned {number!r:.80}, expected a finite number", "row": row}
        return {"values": [None if number is None else float(number) for number in numbers]}

    def _batch(self, samples: Sequence[Record], step: int) -> dict[str, Any]:
        given: dict[str, Any] = {n: [sample["columns"][n] for sample in samples] for n in samples[0]["columns"]}
        prompts, completions = [each["prompt"] for each in samples], [each["text"] for each in samples]
        if self._messages:
            prompts = [[*each["before"], {"role": "user", "content": each["prompt"]}] for each in samples]
            completions = [each["turns"] or [{"role": "assistant", "content": each["text"]}] for each in samples]
        given |= {"prompts": prompts, "completions": completions, "trainer_state": SimpleNamespace(global_step=step)}
        given |= dict.fromkeys(("log_extra", "log_metric"), lambda *_: None)
        if samples[0]["token_ids"] is not None:
            given["completion_ids"] = [sample["token_ids"] for sample in samples]
        return given

    def _single(self, sample: Record) -> dict[str, Any]:
        columns = sample["columns"]
        return {
            "data_source": columns.get("data_source") or sample["dataset"],
            "solution_str": sample["text"],
            "ground_truth": sample["answer"] or None,
            "extra_info": columns.get("extra_info") or columns,
        }


def _is_function(value: object) -> bool:
    return callable(value) and not inspect.isclass(value)


def _hello(reward: UserReward) -> Record:
    return {
        "batched": reward.batched, "columns": reward.columns, "reads_content": reward.reads_content,
        "reads_step": reward.reads_step,
    }  # fmt: skip


if __name__ == "__main__":
    settings = json.loads(sys.argv[2])
    pipe, seconds = Connection(int(sys.argv[1])), int(sys.argv[3])
    work(pipe, lambda: UserReward(**settings), _hello, UserReward.judge, file=__file__, seconds=seconds)
