"""Problems from the rows of a source: question, answer and further columns, in the layouts that people use.

This is the only reader of rows: `data prepare`, training, benchmarks, `evaluate` and the audit of a teacher share it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from nemo_uecr.data.sources import Row, Source, find_source, raw_lines
from nemo_uecr.errors import DataError
from nemo_uecr.verifier.extract import reference_answer

if TYPE_CHECKING:
    from nemo_uecr.config.schema import DataConfig, RecipeDataConfig, RoutingConfig

log = logging.getLogger(__name__)

#: How solutions mark their answer.
MARKED = re.compile(r"(?<!#)####(?!#)\s*([^\n]*)$|<answer>(.*?)</answer>", re.DOTALL)
#: A list of texts that a table keeps as text.
LISTED = re.compile(r"""\[\s*(["'])(.*)\1\s*\]""", re.DOTALL)
THOUSANDS = re.compile(r"([+-]?\$?\d{1,3}(?:,\d{3})+(?:\.\d+)?)")
#: Placeholders for "no answer", without case, dollar signs, points and `\\text`.
SENTINELS = ("proof", "notfound", "not found", "not_found", "none", "null", "nan", "n/a")
#: Reasons of the rows that are left out and counted; every other row that cannot be read stops a run.
NO_ANSWER = ("answer_empty", "answer_sentinel")
#: `Level 5`, `5`, `5/8`.
LEVEL = re.compile(r"(?:[a-z][a-z\s:_-]*)?([+-]?\d+(?:\.\d+)?)(?:\s*/\s*([1-9]\d*))?", re.IGNORECASE)
#: Above any difficulty; NaN, infinity and integers beyond floating point are none.
HARDEST = 1e9
#: Fields that belong to the question, as ASDiv, SVAMP and MMLU have them.
PARTS = ("options", "choices", "body", "Body", "passage", "context")
#: Those of them that hold what an answer chooses from.
CHOICES = ("options", "choices")
#: Small fields that `data prepare` carries along when the source has them.
CARRIED = ("topic", "subject", *PARTS)
ABSENT = object()
NEED_NONE = "; problems without answers need rewards that read none: data.answer_key=null"
SURROGATE = re.compile("[\ud800-\udfff]")
ROLES = {"human": "user", "gpt": "assistant"}
Parsed = TypeVar("Parsed")
Turn = dict[str, str]
#: Values of fields, one of which a row must have in each.
Where = Mapping[str, Sequence[object]]
NOTHING: Where = {}


@dataclass(frozen=True)
class Problem:
    """One problem with its reference answer, and the whole row that it comes from."""

    id: str
    question: str  # the user's last turn where the question is a conversation
    answer: str  # empty where the source has none (data.answer_key=null)
    columns: Row = field(default_factory=dict, compare=False)
    context: tuple[Turn, ...] = ()  # the turns before it

    @property
    def asked(self) -> str:
        """What is asked, with all that belongs to the question: equal for rows that repeat it, whatever the layout."""
        from nemo_uecr.data.screening import question_key

        before = [(turn["role"], question_key(turn["content"])) for turn in self.context]
        parts = {part: self.columns[part] for part in PARTS if self.columns.get(part)}
        return json.dumps([before, question_key(self.question), parts], sort_keys=True, default=str)

    def observation(self, *, played: bool) -> str:
        """A digest of what is one observation in an interval: all that is asked; with an environment the problem.

        An environment makes games of their own of equal questions, because their seeds are the ids'.
        """
        text = f"{self.asked} {self.id}" if played else self.asked
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def game(self, names: Sequence[str] | None) -> str:
        """Question, answer and these columns, of which `reset` makes a game; None: all. Numbers are as their texts."""
        columns = ((name, self.columns.get(name)) for name in sorted(self.columns if names is None else names))
        given = {name: text_of(value) or value for name, value in columns if value is not None}
        return json.dumps([self.asked, self.answer, given], default=str)

    def turn(self, template: str) -> str:
        r"""The user's turn: the template with {question}, and its `PARTS`; no other name, as in ``\boxed{answer}``."""

        def shown(found: re.Match[str]) -> str:
            if found[1] == "question":
                return self.question
            value = self.columns.get(found[1])
            value = listed(value) if found[1] in CHOICES else value
            text = _lettered(value) if isinstance(value, dict | list) else text_of(value)
            if text is None and value:
                kind = kind_of(value)
                raise DataError(f"problem {self.id!r}: {found[1]} is {kind}, expected a text or a list of texts")
            return text or ""

        return re.sub(rf"\{{(question|{'|'.join(PARTS)})\}}", shown, template)


@dataclass(frozen=True)
class Keys:
    """The fields in which each part of a problem is looked for, in this order; dots lead into nested ones."""

    question: tuple[str, ...] = ("question", "problem", "prompt")
    answer: tuple[str, ...] = (
        "final_answer", "answer", "reward_model.ground_truth", "ground_truth", "expected_answer",
        "verification_info.ground_truth", "reward_spec.ground_truth", "answerKey", "solution",
    )  # fmt: skip
    difficulty: tuple[str, ...] = ("difficulty", "level")
    id: tuple[str, ...] = ("unique_id", "id", "problem_idx", "idx")


USUAL = Keys()


@dataclass(frozen=True)
class Fields:
    """A source's own field names; None where there is none, and ``id`` where the rows are numbered."""

    question: str
    answer: str | None
    difficulty: str | None
    id: str | None


class UnreadableRow(Exception):
    """A row is no problem; its text is the reason under which such rows are counted."""


def problems_of(data: DataConfig | RecipeDataConfig, given: str | Path, key: str) -> list[Problem]:
    """The problems that a configuration's ``key`` names, by the field names of its section `data`.

    A benchmark that has not these fields is read by the usual names.
    """
    training = key == "data.train"
    usual = Keys((), (), (), ()) if training else USUAL
    own: str | None = getattr(data, "id_key", "")  # a run inside NeMo-RL has none
    ids = usual.id if own == "" else () if own is None else (own,)
    answers = () if data.answer_key is None else (data.answer_key, *usual.answer)
    keys = Keys((data.question_key, *usual.question), answers, (), ids)
    try:
        source = find_source(str(given), "train" if training else "test")
    except DataError as error:
        raise DataError(f"{key}: {error}") from error
    return read_problems(source, keys, where=data.where if training else {}, answered=bool(answers))


def read_problems(source: Source, keys: Keys, *, where: Where = NOTHING, answered: bool = True) -> list[Problem]:
    """The problems of a source, in order. Ids are unique.

    Where they need not be ``answered`` there may be no field of answers. Otherwise rows without an answer are left out
    and counted; any other row that cannot be read is refused by its place. A column that only some rows have is None
    in the others. Of rows that ``where`` does not choose nothing is read.
    """
    fields, problems, places = fields_of(source, keys, answered=answered), [], dict[str, str]()
    left: Counter[str] = Counter()
    if fields.id is None and keys.id not in ((), ("id",), USUAL.id):
        log.info("%s: no field %r; the rows are numbered", source.name, keys.id[0])
    for number, (place, row) in enumerate(rows_of(source), start=1):
        if not chosen(row, where):
            left["where"] += 1
            continue
        try:
            problem = problem_of(row, fields, number)
        except UnreadableRow as error:
            if str(error) not in NO_ANSWER:
                raise DataError(
                    f"{place}: {error}; the row has {', '.join(map(str, row)) or 'no fields'}. Correct it, name "
                    "another field, or let `nemo-uecr data prepare` leave such rows out and count them"
                ) from error
            left[str(error)] += 1
            continue
        if problem.id in places:
            raise DataError(
                f"{place}: duplicate id {problem.id!r}, also at {places[problem.id]}; expected unique ids in "
                f"{fields.id!r}; leave the field out, or in a run set data.id_key=null"
            )
        places[problem.id] = place
        problems.append(problem)
    others = left.pop("where", 0)
    if others and not (problems or left):
        raise DataError(f"{source.name}: none of {others} rows is chosen by {_shown(where)}; {_seen(source, where)}")
    check_left_out(source.name, left, unread=left.total(), kept=len(problems))
    if others:
        log.info("%s: %d of %d rows are chosen by %s", source.name, len(problems), number, _shown(where))
    if left:
        log.warning("%s: %d rows without an answer are left out: %s", source.name, left.total(), dict(left))
    every = dict.fromkeys(name for problem in problems for name in problem.columns)  # as in a table
    return [replace(problem, columns=every | problem.columns) for problem in problems]


def chosen(row: Row, where: Where) -> bool:
    """Whether each field that ``where`` names has one of its values, written as texts in small letters.

    Of a list one of its members is enough.
    """
    return all({*map(_small, values)} & {*map(_small, _members(row, key))} for key, values in where.items())


def _members(row: Row, key: str) -> Sequence[object]:
    """The values in a field: those of a list, or its one."""
    value = value_at(row, key)
    return value if isinstance(value, list) and value else [value]


def _small(value: object) -> str:
    return str(text_of(value)).casefold()


def _shown(where: Where) -> str:
    return ", ".join(f"{key}={'|'.join(map(str, values))}" for key, values in where.items())


def _seen(source: Source, where: Where) -> str:
    """The most frequent values of each field, or that no row has it, for messages."""
    found: dict[str, Counter[str]] = {key: Counter() for key in where}
    names = dict[str, None]()
    for _, row in rows_of(source):
        names |= dict.fromkeys(row)
        for key in where:
            if value_at(row, key, absent=ABSENT) is not ABSENT:
                found[key].update(str(text_of(value)) for value in _members(row, key))
    return "; ".join(
        f"{key} has {', '.join(f'{value!r} ({count})' for value, count in values.most_common(5))}"
        if values
        else f"no row has a field {key!r}, the rows have {', '.join(names)}"
        for key, values in found.items()
    )


def repeats(problems: Sequence[Problem], game: Callable[[Problem], str] | None) -> str | None:
    """What to say of questions that several rows have, or of equal games where they are played; None where all differ.

    Rows without an answer are games of their own.
    """
    answered = [problem for problem in problems if problem.answer]
    answers: dict[str, set[str]] = {}
    for problem in answered:
        answers.setdefault(game(problem) if game else problem.asked, set()).add(problem.answer)
    if len(answers) == len(answered):
        return None
    said = f"{len(answered)} rows are {len(answers)} {'games' if game else 'questions'}, each counted as often as it "
    if game:
        return f"{said}stands there"
    several = sum(len(each) > 1 for each in answers.values())
    differ = f"; {several} of them with different answers" if several else ""
    return f"{said}stands there{differ}; `nemo-uecr data prepare` keeps one row of each"


def check_left_out(name: str, reasons: Mapping[str, int], *, unread: int, kept: int) -> None:
    """Refuse a source of which nothing is kept or most rows could not be read; ``reasons`` counts what is left out."""
    read = kept + sum(reasons.values())
    if not kept or 2 * unread > read:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        raise DataError(
            f"{name}: {kept} of {read} rows are problems to keep ({counts}); expected most rows to have a question and "
            "an answer that can be read, and some to pass the filters. Name the right fields, or filter otherwise"
        )


# What a problem's columns decide.


def filled(template: str, problem: Problem) -> str:
    """A template with {question}, {answer} and any column of the problem in place of their names in braces."""

    def text(found: re.Match[str]) -> str:
        own = {"question": problem.question, "answer": problem.answer}
        column = own.get(found[1]) or text_of(value_at(problem.columns, found[1]))
        if column is None:
            raise DataError(
                f"problem {problem.id!r} has no text under {found[1]!r}, which prompt_template {template!r:.60} asks "
                f"for; it has {', '.join(problem.columns)}"
            )
        return column

    return re.sub(r"\{([\w.]+)\}", text, template)


def listed(value: object) -> object:
    """What a part of the question is, where a table keeps a list or an object as text; any other value itself."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    if isinstance(found := json_of(value), str):
        try:
            found = ast.literal_eval(value.strip())  # as pandas writes a list
        except (ValueError, SyntaxError):
            return value
    return found if isinstance(found, list | dict) else value


def options_of(options: Any) -> dict[str, str] | None:
    """Options by their letters, or by labels of their own; None where one has no text."""
    options = listed(options)
    if isinstance(options, dict) and isinstance(options.get("text"), list):  # as ARC has them
        options = dict(zip(options.get("label", ()), options["text"], strict=True))
    if isinstance(options, list):
        options = {chr(ord("A") + place): each for place, each in enumerate(options)}
    if not isinstance(options, dict):
        return None
    texts = {letter: text for letter, each in options.items() if (text := text_of(each)) is not None}
    return texts if len(texts) == len(options) else None


def _lettered(options: Any) -> str | None:
    """Options as lines, with letters unless they have their own; None where one has no text."""
    if (texts := options_of(options)) is None:
        return None
    lettered = all(re.match(rf"\(?{re.escape(letter)}[).:]", text) for letter, text in texts.items())
    return "\n".join(text if lettered else f"{letter}) {text}" for letter, text in texts.items())


def teacher_name(problem: Problem, routing: RoutingConfig | None, names: Iterable[str]) -> str:
    """The one of ``names`` that scores the responses to a problem; refused where its column has none of them."""
    known = tuple(names)
    if routing is None:
        return known[0]
    value = value_at(problem.columns, routing.key)
    name = next((name for name in known if name == value), routing.default)
    if name is None:
        raise DataError(
            f"problem {problem.id!r} has {value!r:.40} under {routing.key!r} (routing.key); expected one of the "
            f"teachers {', '.join(known)}: correct the row, or give routing.default"
        )
    return name


def check_routing(problems: Sequence[Problem], routing: RoutingConfig | None, names: Iterable[str]) -> None:
    """Refuse problems without a teacher or without the column; warn about teachers that no problem names."""
    if routing is None:
        return
    if all(value_at(problem.columns, routing.key) is None for problem in problems):
        columns = ", ".join(problems[0].columns)
        raise DataError(f"routing.key: no problem has a column {routing.key!r}; the first has {columns}")
    scored = Counter(teacher_name(problem, routing, names) for problem in problems)
    if idle := [name for name in names if not scored[name]]:
        log.warning("no problem is routed to %s; problems by teacher: %s", ", ".join(idle), dict(scored))


# From a row to a problem.


def rows_of(source: Source, fields: Fields | None = None, *, more: Iterable[str] = ()) -> Iterator[tuple[str, Row]]:
    """The place and content of every row, in order; of Parquet only what ``fields``, ``more`` and `CARRIED` name."""
    columns = None
    if fields is not None:
        keys = [fields.question, *filter(None, [fields.answer, fields.difficulty, fields.id]), *more]
        columns = {*keys, *(first for key in keys for first, _ in _cut(key)), *CARRIED}
    yield from source.rows(columns)


def rows_sha256(source: Source) -> str:
    """A digest of a source's rows in their order, for a reader whose file says nothing of what it reads."""
    digest = hashlib.sha256()
    for _, row in source.rows():
        digest.update(json.dumps(_plain(row)).encode() + b"\n")
    return digest.hexdigest()


def fields_of(source: Source, keys: Keys, *, answered: bool = True) -> Fields:
    """Which fields hold what, by the source's first row."""
    where, first = next(rows_of(source), (source.name, None))
    if first is None:
        raise DataError(f"{source.name}: no rows; expected at least one with a question and an answer")

    def named(among: Sequence[str]) -> str | None:
        return next((key for key in among if value_at(first, key, absent=ABSENT) is not ABSENT), None)

    question, answer = named(keys.question), named(keys.answer)
    if question is None or (answer is None and answered):
        missing = " or ".join(map(repr, dict.fromkeys(keys.question if question is None else keys.answer)))
        likely = (("question_key", question, USUAL.question), ("answer_key", answer, USUAL.answer))
        perhaps = " ".join(f"data.{key}={named(usual)}" for key, found, usual in likely if not found and named(usual))
        raise DataError(
            f"{where}: no field {missing}; the row has {', '.join(first) or 'no fields'}. Name the right ones in "
            f"data.question_key and data.answer_key (data prepare: --question-key, --answer-key)"
            f"{f', perhaps {perhaps}' if perhaps else '' if answer else NEED_NONE}"
        )
    return Fields(question, answer, named(keys.difficulty), named(keys.id))


def problem_of(row: Row, fields: Fields, number: int) -> Problem:
    """The problem in a row, by its fields; UnreadableRow where there is none."""
    context, question = question_of(value_at(row, fields.question), fields.question)
    answer = "" if fields.answer is None else answer_of(value_at(row, fields.answer, absent=ABSENT), fields.answer)
    identity = str(number) if fields.id is None else text_of(value_at(row, fields.id))
    if identity is None:
        raise UnreadableRow(f"{fields.id} is {kind_of(value_at(row, str(fields.id)))}, expected a text or number")
    return Problem(identity, question, answer, {name: _plain(value) for name, value in row.items()}, context)


def value_at(row: Mapping[str, object], key: str, *, absent: object = None) -> object:
    """The value under a name, or where dots lead into nested ones; ``absent`` where there is none."""
    if key in row:
        return row[key]
    for first, rest in _cut(key):
        if first in row:
            inner = row[first]
            if isinstance(inner, str) and inner.startswith("{"):  # an object that a table keeps as text
                inner = json_of(inner)
            if inner is None:
                return None
            found = value_at(inner, rest, absent=ABSENT) if isinstance(inner, dict) else ABSENT
            if found is not ABSENT:
                return found
    return absent


def _cut(key: str) -> Iterator[tuple[str, str]]:
    """Both sides of each dot of a name, the longest first side first: names of fields may have dots of their own."""
    for place in reversed([place for place, sign in enumerate(key) if sign == "."]):
        yield key[:place], key[place + 1 :]


def json_of(text: str) -> object:
    """What a text is as JSON; the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def question_of(value: object, name: str) -> tuple[tuple[Turn, ...], str]:
    """The turns before the question, and the question: a text, or a conversation that ends with the user's turn."""
    if isinstance(value, str) and re.match(r"\s*\[\s*\{\s*[\"'](role|from|content|value)\b", value):
        value = json_of(value)
        if isinstance(value, str):
            raise UnreadableRow(f"{name} is a conversation as text that is not JSON, expected JSON")
    if isinstance(value, list) and value and isinstance(value[0], dict):
        turns = [_turn(each, name) for each in value]
        if turns[-1]["role"] == "assistant":  # a solution to imitate, which no prompt has
            turns.pop()
        if not turns or turns[-1]["role"] != "user":
            role = turns[-1]["role"] if turns else "assistant"
            raise UnreadableRow(f"{name} ends with a turn of {role!r}, expected the user's")
        return tuple(turns[:-1]), turns[-1]["content"]
    if not isinstance(value, str | None):
        raise UnreadableRow(f"{name} is {kind_of(value)}, expected a text or a list of messages")
    if value is None or not usable(value):
        raise UnreadableRow("question_missing")
    return (), value.strip()


def _turn(turn: object, name: str) -> Turn:
    """A message as chat templates read it, `from` and `value` included."""
    each = turn if isinstance(turn, dict) else {}
    role, content = (
        next((each[key] for key in keys if each.get(key) is not None), None)
        for keys in (("role", "from"), ("content", "value"))
    )
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        texts = [part.get("text") for part in content]
        content = "".join(texts) if all(isinstance(text, str) for text in texts) else None
    empty = role == "system" and not str(content).strip()  # none is asked for, not even the template's own
    if not isinstance(role, str) or not isinstance(content, str) or not (usable(content) or empty):
        raise UnreadableRow(
            f"{name} has a turn whose role is {kind_of(role)} and content {kind_of(content)}, expected texts"
        )
    return {"role": ROLES.get(role, role), "content": content.strip()}


def answer_of(value: object, name: str) -> str:
    """A reference answer: a text or number, what follows the last `####`, what a box in the text holds."""
    if value is ABSENT:
        raise UnreadableRow("answer_missing")
    if value is None or (isinstance(value, str) and not value.strip()) or value != value:  # NaN is pandas' null
        raise UnreadableRow("answer_empty")
    text = text_of(value)
    listed = None if text is None else LISTED.fullmatch(text)
    if text is None or (listed and listed[1] in listed[2]):
        raise UnreadableRow(f"{name} is {kind_of(value)}{' of a list' * bool(listed)}, expected a text or number")
    if listed:
        text = listed[2].replace("\\\\", "\\")
    if marked := MARKED.search(text):
        text = (marked[1] or marked[2] or "").strip()
        text = text.replace(",", "") if THOUSANDS.fullmatch(text) else text
    text = reference_answer(text) if "box" in text else text
    if re.sub(r"\\text\s*\{(.*)\}", r"\1", text).strip("$ .").casefold() in ("", *SENTINELS):
        raise UnreadableRow("answer_sentinel")
    return text


def level_of(value: object) -> float | None:
    """A difficulty as a number, of `6.5`, `Level 5` or `5/8` too; None for anything else."""
    text = text_of(value)
    found = None if text is None else LEVEL.fullmatch(text)
    level = None if found is None else float(found[1]) / float(found[2] or 1)
    return level if level is not None and abs(level) < HARDEST else None


def usable(text: str) -> bool:
    """Whether a text is more than blanks and can be written as UTF-8 (JSON can spell a lone surrogate)."""
    return bool(text.strip()) and not SURROGATE.search(text)


def text_of(value: object) -> str | None:
    """A usable text without outer blanks, a finite number (27.0 as "27") or a truth value as text, or the one of these
    in a list; None for anything else.
    """
    if isinstance(value, list):
        return text_of(value[0]) if len(value) == 1 else None
    if isinstance(value, str):
        return value.strip() if usable(value) else None
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, float | Decimal) or not math.isfinite(value):
        return None
    whole = value == int(value)
    return str(int(value)) if whole else repr(value) if isinstance(value, float) else format(value.normalize(), "f")


def kind_of(value: object) -> str:
    """The kind of a value, for messages."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object with {', '.join(map(str, value)) or 'nothing'}"
    return "null" if value is None else "a text" if isinstance(value, str) else f"of type {type(value).__name__}"


def _plain(value: object) -> object:
    """A value of a table as JSON can write it: dates, decimals and bytes as texts."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


# JSONL of our own.


def checked_lines(path: Path, kind: type[Parsed]) -> Iterator[tuple[str, Parsed]]:
    """Place and content of each line of a JSONL file, as pydantic reads it."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected JSONL")
    adapter = TypeAdapter(kind)
    for number, line in raw_lines(path):
        try:
            yield f"{path}:{number}", adapter.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise DataError(f"{path}:{number}: {field}{': ' * bool(field)}{first['msg']}") from error
