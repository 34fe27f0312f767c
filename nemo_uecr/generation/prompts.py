"""Prompts as token ids: a problem, the user's prompt template around it, the model's chat template around that.

A prompt is what was asked for, or it is refused: by a template that drops a turn, prints today's date or does not read
what it is given, or with special tokens in the question.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from nemo_uecr.errors import DataError
from nemo_uecr.generation.models import one_line

if TYPE_CHECKING:
    from nemo_uecr.config.schema import DataConfig, RecipeDataConfig
    from nemo_uecr.data.problems import Problem

log = logging.getLogger(__name__)

#: A turn's text in place of one that a chat template drops or edits.
PROBE = "Is this text kept?"
#: What a prompt asks that only shows what the chat template does.
QUESTION = "What is 2 + 3?"
#: Two moments that no format writes alike.
MOMENTS = ("2001-02-03T04:05:06", "2013-11-14T17:28:39")
Argument = bool | int | float | str


class ClockError(DataError):
    """A chat template prints today's date."""


@dataclass(frozen=True)
class ChatSettings:
    """How a problem becomes a prompt."""

    template: str  # the user's turn; {question} is replaced
    system: str | None
    thinking: bool  # handed to the chat template
    chat_template_kwargs: Mapping[str, Argument] = field(default_factory=dict)  # handed to it as well
    prompt_date: str | None = None  # what it takes for today
    tools: tuple[Mapping[str, Any], ...] = ()  # JSON schemas of what the student may call, handed to it as well

    def __str__(self) -> str:
        more = "".join(f", {name} {value!r}" for name, value in self.chat_template_kwargs.items())
        date = f", date {self.prompt_date}" if self.prompt_date else ""
        return f"{self.template!r}, system prompt {self.system!r}, thinking {self.thinking}{more}{date}"

    def recorded(self) -> dict[str, Any]:
        """For a record; what is not set is left out, as by versions that did not know it."""
        return {name: value for name, value in asdict(self).items() if name == "system" or value not in ({}, None, ())}

    @property
    def options(self) -> dict[str, Any]:
        """What the chat template is handed besides the turns, for a text that ends where the student begins."""
        tools = {"tools": list(self.tools)} if self.tools else {}
        given = {"add_generation_prompt": True, "enable_thinking": self.thinking}
        return given | dict(self.chat_template_kwargs) | tools

    @classmethod
    def of(cls, data: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> ChatSettings:
        """Those of a configuration's section `data`; a recipe's, and one of an earlier run, has fewer keys.

        ``tools`` are the environment's.
        """
        more = data.get("chat_template_kwargs", {}), data.get("prompt_date"), tuple(tools)
        return cls(data["prompt_template"], data.get("system_prompt"), data["enable_thinking"], *more)


def fitting_prompts(
    tokenizer: Any,
    problems: Sequence[Problem],
    data: DataConfig | RecipeDataConfig,
    benchmark: str = "",
    tools: Sequence[Mapping[str, Any]] = (),
) -> dict[int, list[int]]:
    """Token ids, by place, of the problems' prompts that are not too long, with the environment's ``tools``.

    A ``benchmark`` with a prompt that is too long is refused.
    """
    chat = ChatSettings.of(data.model_dump(), tools)
    check_questions(tokenizer, problems, chat, benchmark or "data.train")
    encoded = {place: prompt_of(tokenizer, each, chat) for place, each in enumerate(problems)}
    kept = {place: ids for place, ids in encoded.items() if len(ids) <= data.max_prompt_tokens}
    if long := [place for place in encoded if place not in kept]:
        fault = (
            f"{benchmark and f'benchmark {benchmark}: '}{len(long)} of {len(problems)} prompts have more than "
            f"data.max_prompt_tokens={data.max_prompt_tokens} tokens; the first is problem {problems[long[0]].id!r} "
            f"with {len(encoded[long[0]])}"
        )
        if benchmark or data.long_prompts == "refuse" or not kept:
            drop = ", or leave some out: data.long_prompts=drop" if kept else ""
            raise DataError(f"{fault}. Raise the limit{'; a benchmark is never cut' if benchmark else drop}")
        log.warning("%s; they are dropped", fault)
    return kept


def prompts_sha256(prompts: Iterable[Sequence[int]]) -> str:
    """A digest of token ids in their order: another template, tokenizer or date gives another one."""
    digest = hashlib.sha256()
    for ids in prompts:
        digest.update(json.dumps(list(ids)).encode())
    return digest.hexdigest()


def check_template(tokenizer: Any, chat: ChatSettings) -> None:
    """Refuse arguments that the chat template never names, tools that it hides, and a date that nobody gave it."""
    text = template_of(tokenizer, chat.tools)
    if unread := [name for name in chat.chat_template_kwargs if not re.search(rf"\b{re.escape(name)}\b", text)]:
        raise DataError(
            f"data.chat_template_kwargs: the model's chat template {'reads no' if text else 'is missing, and so is'} "
            f"{', '.join(unread)}; expected names that stand in its chat_template.jinja"
        )
    if chat.tools:
        check_tools(tokenizer, chat)
    if not text or chat.prompt_date is not None:
        return
    if len({rendered(tokenizer, QUESTION, replace(chat, prompt_date=moment)) for moment in MOMENTS}) > 1:
        raise ClockError(
            "the model's chat template writes today's date into the prompt, so that a run that is resumed tomorrow "
            f"would have other prompts; give it the date: data.prompt_date={datetime.date.today()} (evaluate: "
            "--prompt-date)"
        )


def check_tools(tokenizer: Any, chat: ChatSettings) -> str:
    """The names of the tools, each of which the prompt has because of them; refused where the student reads of none."""
    names = [str(tool["function"]["name"]) for tool in chat.tools]
    without = replace(chat, tools=())
    there = tokenizer.chat_template is not None
    told, untold = (rendered(tokenizer, QUESTION, each) if there else "" for each in (chat, without))
    if hidden := [name for name in names if told.count(name) <= untold.count(name)]:
        raise DataError(
            f"environment.call: the model's chat template {'does not show' if there else 'is missing, and so is'} the "
            f"tool {hidden[0]}; expected one that writes its variable `tools` into the prompt, or a class with "
            "step(text)"
        )
    return ", ".join(names)


def template_of(tokenizer: Any, tools: Sequence[Mapping[str, Any]]) -> str:
    """The chat template that is applied, of several the one for ``tools`` where there are any; "" for none."""
    if tokenizer.chat_template is None:
        return ""
    try:
        return str(tokenizer.get_chat_template(tools=list(tools) or None))
    except ValueError as error:
        raise DataError(
            f"the model has several chat templates ({', '.join(sorted(tokenizer.chat_template))}), and none is named "
            "default; write the one that is meant into its chat_template.jinja"
        ) from error


def check_questions(tokenizer: Any, problems: Sequence[Problem], chat: ChatSettings, name: str) -> None:
    """Refuse questions most of which hold special tokens of the model: prompts that are rendered already.

    A few are a warning. Without a chat template they are as the user wants them; so is what the prompt template has.
    """
    if tokenizer.chat_template is None:
        return
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special and str(token).strip()}
    pattern = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
    meant = set(pattern.findall(f"{chat.template}{chat.system or ''}"))
    found = [
        (problem, token)
        for problem in problems
        for text in [" ".join([problem.turn(chat.template), *(turn["content"] for turn in problem.context)])]
        if (token := next((token for token in pattern.findall(text) if token not in meant), ""))
    ]
    if not found:
        return
    problem, token = found[0]
    fault = (
        f"{name}: {len(found)} of {len(problems)} questions hold special tokens of the model, which are encoded as "
        f"such and not as text; the first is {token!r} in problem {problem.id!r}: {problem.question[:60]!r}"
    )
    if 2 * len(found) > len(problems):
        raise DataError(
            f"{fault}. They look like prompts that are rendered already, and the chat template would wrap them again; "
            "name the field of the bare question: data.question_key"
        )
    log.warning("%s", fault)


def turns_before(system: str | None, context: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The turns before the question: ``context``, headed by the ``system`` prompt unless it has a system turn."""
    own = system is None or (context and context[0]["role"] == "system")
    return [*([] if own else [{"role": "system", "content": str(system)}]), *map(dict, context)]


def prompt_of(tokenizer: Any, problem: Problem, chat: ChatSettings) -> list[int]:
    """Token ids of a problem's prompt."""
    return prompt_ids(tokenizer, problem.turn(chat.template), chat, problem.context)


def prompt_ids(tokenizer: Any, turn: str, chat: ChatSettings, context: Sequence[Mapping[str, str]] = ()) -> list[int]:
    """Token ids of a prompt that ends with the user's ``turn``, up to the start of the response.

    Without a chat template those of the bare text. ``context`` are the turns between the system prompt and the last.
    """
    if tokenizer.chat_template is not None:
        text = rendered(tokenizer, turn, chat, context)
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    if before := turns_before(chat.system, context):
        raise DataError(
            f"a {before[0]['role']} turn comes before the question, but the model's tokenizer has no chat template "
            "that could place it; write it into the prompt template"
        )
    begun = bool(tokenizer.bos_token) and turn.startswith(tokenizer.bos_token)  # by the prompt template
    ids = list(tokenizer(turn, add_special_tokens=not begun, verbose=False)["input_ids"])
    # A tokenizer with `add_eos_token` would end the response before it begins.
    ended = ids[-1:] == [tokenizer.eos_token_id] and not turn.endswith(tokenizer.eos_token)
    return ids[:-1] if ended else ids


def rendered(tokenizer: Any, turn: str, chat: ChatSettings, context: Sequence[Mapping[str, str]] = ()) -> str:
    """A prompt as text, by the model's own chat template, up to the start of the response.

    A template that drops a turn is refused. It may edit one, as SmolLM3's takes `/no_think` out, and past answers.
    """
    turns = [*turns_before(chat.system, context), {"role": "user", "content": turn}]
    text = apply_template(tokenizer, turns, chat.options, date=chat.prompt_date)
    for place, each in enumerate(turns):
        if each["role"] in ("system", "user") and each["content"].strip() not in text:
            tried = [*turns[:place], {**each, "content": PROBE}, *turns[place + 1 :]]
            if PROBE not in apply_template(tokenizer, tried, chat.options, date=chat.prompt_date):
                what = "leave the system prompt out" if each["role"] == "system" else "take the model's own release"
                raise DataError(
                    f"the model's chat template drops the {each['role']} turn {each['content'][:60]!r}: {what}, or "
                    "correct its chat_template.jinja"
                )
    return text


def apply_template(
    tokenizer: Any, turns: Sequence[Mapping[str, Any]], options: Mapping[str, Any], *, date: str | None
) -> str:
    """The text that the model's chat template makes of turns, on that ``date``, such as 2026-11-29; None: today."""
    template = None if date is None else dated(template_of(tokenizer, options.get("tools", ())), date)
    try:
        return str(tokenizer.apply_chat_template(list(turns), tokenize=False, chat_template=template, **options))
    except Exception as error:  # a template is a program of the model's author and may raise anything
        system = "; some templates accept no system turn: leave the system prompt out"
        raise DataError(
            f"the model's chat template refuses the prompt: {one_line(error)}"
            f"{system if any(turn['role'] == 'system' for turn in turns) else ''}"
        ) from error


@cache
def dated(template: str, date: str) -> str:
    """A chat template that takes a moment, such as 2026-11-29, for now, whatever format it asks the clock for.

    In place of the library's function it has a macro of the same name, because no function can be handed to it.
    """
    moment = datetime.datetime.fromisoformat(date)
    codes = [f"%{flag}{letter}" for flag in ("-", "") for letter in string.ascii_letters]
    written = json.dumps([[code, moment.strftime(code)] for code in codes])
    loop = f"{{% for code, value in {written} %}}{{% set now.text = now.text|replace(code, value) %}}{{% endfor %}}"
    inside = f"{{% set now = namespace(text=format) %}}{loop}{{{{ now.text }}}}"
    return f"{{% macro strftime_now(format) %}}{inside}{{% endmacro %}}{template}"
