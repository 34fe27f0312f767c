"""Responses of several turns: token in, token out.

Token ids only grow: what was sampled or observed is never tokenised again. What stands between two turns comes from the
model's own chat template, which is asked once, before the run; a template that would rewrite the history is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from nemo_uecr.errors import DataError
from nemo_uecr.generation.engines import Generation, ModelTokens
from nemo_uecr.generation.environments import Environment, Episode
from nemo_uecr.generation.prompts import PROBE, ChatSettings, apply_template, check_template, turns_before
from nemo_uecr.reproducible import derive
from nemo_uecr.verifier.user_code import Failures

if TYPE_CHECKING:
    from nemo_uecr.data.problems import Problem

log = logging.getLogger(__name__)

#: How an observation is shown: as a turn of the user's or of a tool's, or as text that continues the student's turn.
Role = Literal["user", "tool", "text"]
#: What a template may open a student's turn with and leave out once the turn is over.
THOUGHT = re.compile(r"<(\w*think\w*)>\s*(?:</\1>\s*)?$")
#: What a tool is called with by the student, in a template that writes calls as Qwen's do.
CALLED = "a_tool_that_is_called"
THOUGHTS_STAY = "the chat template leaves thoughts out of what came before; here token ids only grow, so that they stay"
Message = Mapping[str, Any]


class Bridge:
    """What stands between two of the student's turns, as token ids, by the model's chat template."""

    def __init__(self, tokens: ModelTokens, chat: ChatSettings, role: Role) -> None:
        """Look at the template, and refuse one that this cannot be said of.

        Raises:
            DataError: It has no such turns, does not close an answer with one of the student's end tokens, or writes
                what came before in another way once a turn follows.
        """
        self._tokens, self._chat, self._role = tokens, chat, role
        self._before = [*turns_before(chat.system, ()), {"role": "user", "content": f"{PROBE} 0"}]
        self.closing: int | None = None  # id of the token that closes an answer; None: observations continue the turn
        self.thoughts_stay = False  # whether the template leaves thoughts out of what came before, which stay here
        self._pieces: dict[int, list[str]] = {}
        if role == "text":
            self._check_joins()
            return
        if tokens.tokenizer.chat_template is None:
            raise DataError(
                f"environment.role: got {role}, but the model's tokenizer has no chat template; expected role=text"
            )
        self.closing = self._closing()
        self._pieces[1] = self._between(1)
        self._check_history()
        if chat.tools:
            self._check_calls()

    def _rendered(self, turns: Sequence[Message]) -> str:
        turns = [*self._before, *turns]
        return apply_template(self._tokens.tokenizer, turns, self._chat.options, date=self._chat.prompt_date)

    def _observed(self, count: int, first: int = 1) -> list[Message]:
        return [{"role": self._role, "content": f"{PROBE} {first + number}."} for number in range(count)]

    def _closing(self) -> int:
        """The end token with which the template closes an answer."""
        _, kept, after = self._rendered([_answer(1), *self._observed(1)]).partition(_answer(1)["content"])
        if not kept:
            raise DataError(
                f"the model's chat template drops the answer that comes before a turn of the role {self._role!r}; "
                "expected one that writes all of `messages`: correct its chat_template.jinja"
            )
        decode = self._tokens.tokenizer.decode
        for token in sorted(self._tokens.end_ids):
            if after.startswith(decode([token])):
                return token
        ends = ", ".join(repr(decode([token])) for token in sorted(self._tokens.end_ids))
        raise DataError(
            f"the model's chat template goes on with {after[:40]!r} after an answer, which the student ends with "
            f"{ends}; expected a template that closes an answer with one of these"
        )

    def _between(self, count: int) -> list[str]:
        """The template's text before, between and after ``count`` observations, from the answer's end token on."""
        text = self._rendered([_answer(1), *self._observed(count)]).partition(_answer(1)["content"])[2]
        pieces = []
        for observed in self._observed(count):
            piece, found, text = text.partition(observed["content"])
            if not found:
                raise DataError(
                    f"the model's chat template drops a turn of the role {self._role!r}; choose another "
                    "environment.role"
                )
            pieces.append(piece)
        return [*pieces, text]

    def _check_history(self) -> None:
        """What came before stands as it was once an answer and an observation follow, a thought left aside."""
        close = self._tokens.tokenizer.decode([self.closing])
        told, turns = self._rendered([]), list[Message]()
        for number in (1, 2):
            turns += [_answer(number), *self._observed(1, first=number)]
            whole, added = self._rendered(turns), f" ?{re.escape(_answer(number)['content'] + close)}"
            if not re.match(re.escape(told) + added, whole):
                self.thoughts_stay = True
                if not re.match(re.escape(THOUGHT.sub("", told)) + added, whole):
                    raise DataError(
                        "the model's chat template writes what came before in another way once a turn of the role "
                        f"{self._role!r} follows; here token ids only grow, so that the student would be trained on a "
                        "conversation that it never sees elsewhere: choose another environment.role, or correct its "
                        "chat_template.jinja"
                    )
            told = whole
        if told.partition(_answer(2)["content"])[2] != self._observed(1, first=2)[0]["content"].join(self._pieces[1]):
            raise DataError("the model's chat template writes later turns in another way than the first ones")

    def _check_calls(self) -> None:
        """The template writes a call as it is read here."""
        call = {"type": "function", "function": {"name": CALLED, "arguments": {"text": PROBE}}}
        try:
            text = self._rendered([{"role": "assistant", "content": "", "tool_calls": [call]}, *self._observed(1)])
        except DataError:
            text = ""
        if not re.search(rf'<tool_call>\s*\{{"name": "{CALLED}"', text):
            raise DataError(
                "environment.call: the student's chat template does not write calls of tools as Qwen's do, "
                '<tool_call>{"name": ..., "arguments": ...}</tool_call>; write a class with step(text), which reads '
                "the calls itself"
            )

    def _check_joins(self) -> None:
        tokenizer = self._tokens.tokenizer
        joined = [token for text in ("2+3=", "5") for token in self._ids(text)]
        if (found := tokenizer.decode(joined)) != "2+3=5":
            raise DataError(
                f"environment.role: got text, but the model's tokenizer makes {found!r} of '2+3=' and '5'; expected "
                "one that adds no blanks, or role=user"
            )

    def can_follow(self, turn: Sequence[int]) -> bool:
        """Whether an observation can follow a turn that ended: not after another end token than the template's."""
        return turn[-1] == self.closing or turn[-1] not in self._tokens.end_ids

    def ids(self, turn: Sequence[int], texts: Sequence[str]) -> tuple[int, ...]:
        """Token ids between the end of a ``turn`` and the next one, which show these observations.

        Control tokens in an observation stay text. A turn that a stop string ended is closed first.
        """
        if self.closing is None:
            return tuple(self._of_content("\n".join(texts)))
        if len(texts) not in self._pieces:
            self._pieces[len(texts)] = self._between(len(texts))
        pieces = self._pieces[len(texts)]
        if any(map(self._special.search, texts)):
            ids = self._ids(pieces[0])
            for text, piece in zip(texts, pieces[1:], strict=True):
                ids += [*self._of_content(text), *self._ids(piece)]
        else:
            ids = self._ids(
                "".join([pieces[0], *(part for pair in zip(texts, pieces[1:], strict=True) for part in pair)])
            )
        return tuple(ids[1:] if turn[-1] == self.closing else ids)  # the closing token is the first

    def _of_content(self, text: str) -> list[int]:
        special = {"split_special_tokens": True} if self._special.search(text) else {}
        return self._ids(text, **special)

    def _ids(self, text: str, **options: bool) -> list[int]:
        return list(self._tokens.tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"])

    @cached_property
    def _special(self) -> re.Pattern[str]:
        known = self._tokens.tokenizer.added_tokens_decoder.values()
        texts = sorted((str(token) for token in known if token.special and str(token).strip()), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)) or "(?!)")


def _answer(number: int) -> Message:
    return {"role": "assistant", "content": f"An answer, the {number}th."}


G = TypeVar("G", bound=Generation)


@dataclass(frozen=True)
class Asked:
    """What a response answers."""

    problem: Problem
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True)
class Turn:
    """A turn to sample."""

    row: int  # of the response
    number: int  # from 0
    prompt_ids: tuple[int, ...]  # all that comes before it
    limit: int  # tokens


def turn_seed(seed: int, number: int) -> int:
    """A response's turns draw from streams of their own; the first from the response's, as where there is one turn."""
    return derive(seed, "turn", number) if number else seed


@dataclass
class Conversation(Generic[G]):
    """A response of several turns."""

    turns: list[G] = field(default_factory=list)  # as they were sampled
    said: list[str] = field(default_factory=list)  # the text of each, with the special tokens inside it
    observed: list[tuple[str, ...]] = field(default_factory=list)  # what was observed between them
    token_ids: tuple[int, ...] = ()  # of all
    spans: tuple[tuple[int, int], ...] = ()  # where each turn begins and ends
    truncated: bool = False  # its last turn was cut off, or an observation had no room

    def add(self, turn: G, text: str) -> None:
        """The student's next turn."""
        start = len(self.token_ids)
        self.turns.append(turn)
        self.said.append(text)
        self.token_ids += turn.token_ids
        self.spans += ((start, len(self.token_ids)),)
        self.truncated = turn.truncated

    def messages(self, role: str) -> list[dict[str, str]]:
        """All turns as messages, the observations in that role."""
        made = []
        for number, text in enumerate(self.said):
            made.append({"role": "assistant", "content": text})
            shown = self.observed[number] if number < len(self.observed) else ()
            made += [{"role": role, "content": each} for each in shown]
        return made


def with_first(problem: Problem, observation: str | None) -> Problem:
    """A problem with what the environment shows at the beginning below its question."""
    return replace(problem, question=f"{problem.question}\n\n{observation or ''}".strip())


@dataclass(frozen=True)
class Dialogue:
    """How a policy's responses are held in turns with an environment."""

    environment: Environment
    bridge: Bridge
    tokens: ModelTokens
    chat: ChatSettings
    max_prompt_tokens: int

    @classmethod
    def of(
        cls, environment: Environment, tokens: ModelTokens, chat: ChatSettings, *, max_prompt_tokens: int
    ) -> Dialogue:
        """With the tools of the environment in the ``chat``; a template that cannot hold it is refused."""
        check_template(tokens.tokenizer, chat)
        bridge = Bridge(tokens, chat, environment.settings.role)
        if bridge.thoughts_stay:
            log.warning("%s", THOUGHTS_STAY)
        return cls(environment, bridge, tokens, chat, max_prompt_tokens)

    def hold(
        self,
        draw: Callable[[Sequence[Turn]], Sequence[G]],
        asked: Sequence[Asked],
        episodes: Sequence[Episode],
        *,
        max_tokens: int,
        told: bool = False,
    ) -> tuple[list[Asked], list[Conversation[G]]]:
        """What each response answers, and the response: its turns in an episode of its own.

        A response has ``max_tokens`` at most, what is observed included. A turn that is cut off ends its episode, and
        so does an observation that leaves no room for another turn: it is dropped, and the response is truncated.
        What is ``told`` has already what the environment shows at the beginning.
        """
        failures = self.environment.failures(len(asked))
        first = self.environment.begin(episodes, failures)
        if not told:
            asked = [self._with(each, text) for each, text in zip(asked, first, strict=True)]
        responses, going = [Conversation[G]() for _ in asked], list(range(len(asked)))
        for number in range(self.environment.settings.max_turns):
            drawn = draw([self._turn(row, number, asked[row], responses[row], max_tokens) for row in going])
            for row, turn in zip(going, drawn, strict=True):
                responses[row].add(turn, self.tokens.whole_text(turn.token_ids))
            going = self._observe(going, responses, episodes, failures, number, max_tokens)
            if not going:
                break
        self.environment.end(episodes, failures)
        failures.end()
        self._warn(episodes, responses)
        return list(asked), responses

    def _warn(self, episodes: Sequence[Episode], responses: Sequence[Conversation[G]]) -> None:
        """Say once of what is a fault if a step is full of it: calls of tools that fail, and turns that are cut off."""
        settings, found = self.environment.settings, dict[str, str]()
        errors, calls = [error for each in episodes for error in each.errors], sum(each.calls for each in episodes)
        if 2 * len(errors) > calls:
            found["calls"] = f"{len(errors)} of {calls} calls of its tools failed, the first with {errors[0]:.200}"
        if all(each.truncated and len(each.turns[-1].token_ids) == settings.turn_tokens for each in responses):
            cut = f"all {len(responses)} responses are cut off at the longest turn, environment.turn_tokens"
            found["cut"] = f"{cut}={settings.turn_tokens}; raise it"
        for what in sorted(found.keys() - self.environment.warned):
            log.warning("environment %s: %s", settings.label, found[what])
        self.environment.warned |= found.keys()

    def _turn(self, row: int, number: int, asked: Asked, response: Conversation[G], max_tokens: int) -> Turn:
        room, longest = max_tokens - len(response.token_ids), self.environment.settings.turn_tokens
        return Turn(row, number, asked.prompt_ids + response.token_ids, min(room, longest or room))

    def _observe(
        self,
        rows: Sequence[int],
        responses: Sequence[Conversation[G]],
        episodes: Sequence[Episode],
        failures: Failures,
        number: int,
        max_tokens: int,
    ) -> list[int]:
        """Answer the last turns of these rows; the rows that go on."""
        playing = [row for row in rows if not episodes[row].over and not responses[row].truncated]
        said = self.environment.step(
            [episodes[row] for row in playing], [responses[row].said[-1] for row in playing], failures
        )
        going = []
        for row, observation in zip(playing, said, strict=True):
            response, last = responses[row], responses[row].turns[-1].token_ids
            ended = number + 1 == self.environment.settings.max_turns or not self.bridge.can_follow(last)
            if observation is None or ended:
                continue
            observed = self.bridge.ids(last, observation)
            response.truncated = len(response.token_ids) + len(observed) >= max_tokens
            if not response.truncated:
                response.token_ids += observed
                response.observed.append(observation)
                going.append(row)
        return going

    def _with(self, asked: Asked, observation: str | None) -> Asked:
        """What is asked, with what the environment shows at the beginning below the question."""
        if observation is None:
            return asked
        problem = with_first(asked.problem, observation)
        prompt = self.tokens.prompt(problem, self.chat)
        if len(prompt) > self.max_prompt_tokens:
            raise DataError(
                f"problem {problem.id!r}: with what environment {self.environment.settings.label} shows at the "
                f"beginning the prompt has {len(prompt)} tokens; expected at most "
                f"data.max_prompt_tokens={self.max_prompt_tokens}"
            )
        return Asked(problem, prompt)
