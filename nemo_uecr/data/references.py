"""Whether the verifier can judge the reference answers, and whether the prompts ask for what it reads."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence

from nemo_uecr.data.problems import CHOICES, PARTS, Problem, json_of, options_of, text_of
from nemo_uecr.errors import DataError
from nemo_uecr.verifier.extract import Verdict, reference_answer
from nemo_uecr.verifier.pool import SHARED, check_responses

log = logging.getLogger(__name__)

#: How questions ask for an answer that the verifier, which reads a box, does not see.
OTHER_FORMS = {
    "after ####": re.compile("####"),
    "after Answer:": re.compile("(?i)(?:answer|\u7b54\u6848)[\"'`\u201d\u2019*\\s]*[:\uff1a=]"),
    "after 'the answer is'": re.compile("(?i)[\"'`\u201c\u2018*]\\s*(?:[a-z]+,? )?the (?:[a-z]+ )?answer is\\b"),
    "in tags or brackets": re.compile(r"(?i)<\w*answer\w*>|\[+(?:[a-z]+ )*answer\]"),
    "as JSON": re.compile(r"(?i)\bjson\b"),
}
#: Tests of code, which are no answers.
TESTS = re.compile(r"\s*(?:assert\b|def |import |class |from \w+ import )")
#: LaTeX whose backslashes were escaped once more, and characters as HTML has them: equal to themselves alone.
ESCAPED = re.compile(
    r"(?<!\\)\\\\(?:[dt]?frac|sqrt|text|pi|cdot|times|left|infty)(?![A-Za-z])|&(?:lt|gt|le|ge|amp|nbsp|#\d+);"
)
#: Numbers grouped as 1.234,5 or 1.234.567, 1'234, 1,23,456 or 1_234: the verifier takes none of them for the number.
GROUPED = re.compile(
    r"[+-]?(?:\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}|\d{1,3}(?:['\u2019]\d{3})+(?:\.\d+)?"
    r"|\d{1,2}(?:,\d{2})+,\d{3}|\d+(?:_\d+)+)"
)
#: Marks of chats, and what some templates end with.
RENDERED = re.compile(
    r"<\|\w+\|>|<\uff5c[^<>]+\uff5c>|\[/?INST\]|<(?:start|end)_of_turn>"
    r"|(?:^|\n)(?:### )?(?:Assistant|Response)\s*:\s*(?:<think>)?\s*$"
)
#: A letter as exams number their options.
LETTER = re.compile("[A-J]")
#: Words outside of LaTeX beyond which a reference is a worked solution, which no answer equals.
MOST_WORDS = 12
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
#: A sentence that states one number, and no mathematics beside it.
SENTENCE = re.compile(
    r"[^\d\\$=^]*\b(?:is|are|was|were|equals|answer|result|total)\b[^\d\\$=^]*?(-?\d(?:[\d,]*\d)?(?:[./]\d+)?)(?![\w])[^\d\\$=^]*",
    re.IGNORECASE,
)


def check_references(name: str, problems: Sequence[Problem], *, refuse: bool = True, template: str = "") -> None:
    """Refuse problems most of whose answers the verifier cannot judge; a few, and questions at fault, are a warning.

    Without ``refuse`` everything is a warning. The parts that the prompts' ``template`` names are shown.
    """
    if unjudged := _unjudged(problems):
        first = unjudged[0]
        fault = (
            f"{name}: the verifier cannot judge {len(unjudged)} of {len(problems)} reference answers; the first is "
            f"{first.answer[:80]!r} of problem {first.id!r}. Expected final answers alone, such as 7/2 or 1234.5: no "
            "sentences, worked solutions, HTML or doubled backslashes; name their field: data.answer_key"
        )
        if refuse and 2 * len(unjudged) > len(problems):
            raise DataError(fault)
        log.warning("%s", fault)
    for text in _asked_otherwise(problems, template):
        log.warning("%s: %s", name, text)
    fault, most = _choice_fault(problems, template)
    if fault and most and refuse:
        raise DataError(f"{name}: {fault}")
    if fault:
        log.warning("%s: %s", name, fault)
    for text in _not_shown(problems, template):
        log.warning("%s: %s", name, text)


def _asked_otherwise(problems: Sequence[Problem], template: str) -> Iterator[str]:
    """What most prompts ask for that the verifier does not read, and that they are rendered already."""
    turns = [turn for each in problems if "boxed" not in (turn := _shown(each, template))]
    for form, asks in OTHER_FORMS.items():
        asking = [turn for turn in turns if asks.search(turn)]
        if 2 * len(asking) > len(problems):
            yield (
                f"{len(asking)} of {len(problems)} prompts ask for the answer {form}, as in "
                f"{_around(asks, asking[0])!r}, and the verifier reads \\boxed{{}} alone; name the field of the bare "
                "question, data.question_key (extra_info.question in verl's rows), and ask for the box in "
                "data.prompt_template, or write a reward"
            )
    if 2 * len(wrapped := [each for each in problems if RENDERED.search(each.question)]) > len(problems):
        yield (
            f"{len(wrapped)} of {len(problems)} questions look like prompts that are rendered already, as "
            f"{wrapped[0].question[-60:]!r}; a model's chat template wraps them again: name the field of the bare "
            "question, data.question_key"
        )


def _not_shown(problems: Sequence[Problem], template: str) -> Iterator[str]:
    """What belongs to most questions and reaches no prompt."""
    if 2 * len(unseen := [each for each in problems if _shows_no_letter(each, template)]) > len(problems):
        yield (
            f"{len(unseen)} of {len(problems)} answers are letters, such as {unseen[0].answer!r} of problem "
            f"{unseen[0].id!r}, that the prompts do not show; options in fields such as option_a reach no prompt: "
            "write them into the question, or as a list into a field `options`"
        )
    for part in (part for part in PARTS if f"{{{part}}}" not in template):
        if 2 * sum(_hides(problem, part) for problem in problems) > len(problems):
            yield (
                f"the questions do not show their field {part!r}; name it in the template, as in '{{{part}}} "
                "{question}'. Of options the answer must be the letter"
            )


def _shown(problem: Problem, template: str) -> str:
    """What the model is shown: the turns before the question, such as a system turn, and the question's own."""
    return "\n".join([*(turn["content"] for turn in problem.context), problem.turn(template or "{question}")])


def _shows_no_letter(problem: Problem, template: str) -> bool:
    """Whether an answer is the letter of an option, and neither a prompt nor a field of options has it."""
    letter = reference_answer(problem.answer).strip("() .")
    if not LETTER.fullmatch(letter) or any(problem.columns.get(part) for part in CHOICES):
        return False
    return not re.search(rf"(?<![A-Za-z]){letter}(?![A-Za-z])", _shown(problem, template))


def _around(asks: re.Pattern[str], turn: str) -> str:
    """The line of a prompt that asks for another form."""
    found = asks.search(turn)
    place = 0 if found is None else found.start()
    return turn[turn.rfind("\n", 0, place) + 1 :].partition("\n")[0].strip()[-100:]


def _choice_fault(problems: Sequence[Problem], template: str) -> tuple[str, bool]:
    """What is wrong with answers as choices among options, empty where nothing is; and whether most are so."""
    strange, hidden = list[tuple[Problem, str, dict[str, str]]](), list[tuple[Problem, str]]()
    for problem in problems:
        part = next((part for part in CHOICES if problem.columns.get(part)), "")
        options = options_of(problem.columns[part]) if part else None
        answer = reference_answer(problem.answer).strip("() .")
        if options and answer in options:
            hidden += [(problem, part)] if f"{{{part}}}" not in template and _hides(problem, part) else []
        elif options and _is_label(answer, options):
            strange.append((problem, part, options))
    most = 2 * max(len(strange), len(hidden)) > len(problems)
    if strange and len(strange) >= len(hidden):
        problem, part, options = strange[0]
        fault = (
            f"{len(strange)} of {len(problems)} answers are none of their options, such as {problem.answer!r} of "
            f"problem {problem.id!r}, whose {part} are {', '.join(options)}; expected {next(iter(options))!r} for the "
            "first"
        )
        return fault, most
    if hidden:
        problem, part = hidden[0]
        fault = (
            f"{len(hidden)} of {len(problems)} answers, such as {problem.answer!r} of problem {problem.id!r}, name "
            f"options that the questions do not show; have data.prompt_template show them, as '{{question}} {{{part}}}'"
        )
        return fault, most
    return "", False


def _is_label(answer: str, options: Mapping[str, str]) -> bool:
    """Whether an answer that is the label of no option is one all the same, of another kind of labels."""
    one = len(answer) == 1 and answer.isalpha() and answer.isascii()
    number = answer.isascii() and answer.isdigit() and int(answer) <= len(options)
    return (one or number) and answer not in (text.strip("$ ") for text in options.values())


def _hides(problem: Problem, part: str) -> bool:
    """Whether the row has this part of the question in a field of its own, and the question shows not even its end."""
    last = problem.columns.get(part)
    while isinstance(last, dict | list):
        last = next(reversed(last.values() if isinstance(last, dict) else last), None)
    return bool(text := text_of(last)) and str(text) not in problem.question


def _unjudged(problems: Sequence[Problem]) -> list[Problem]:
    """The problems whose reference answer, or the only number in its sentence, does not pass for itself in a box."""
    answers = [reference_answer(problem.answer) for problem in problems]
    numbers = [sentence[1] if (sentence := SENTENCE.fullmatch(answer)) else answer for answer in answers]
    checked = check_responses([rf"\boxed{{{number}}}" for number in numbers], answers, SHARED)
    return [
        problem
        for problem, answer, found in zip(problems, answers, checked, strict=True)
        if found.verdict is not Verdict.CORRECT
        or len(WORD.findall(answer)) > MOST_WORDS
        or ("\n" in answer and "\\begin" not in answer)
        or ESCAPED.search(answer)
        or GROUPED.fullmatch(answer.strip("$ "))
        or _is_data(answer)
    ]


def _is_data(answer: str) -> bool:
    """Whether an answer is an object, a list of objects or of tests: what code is checked with, and no text states."""
    value = json_of(answer) if answer[:1] in "[{" else answer
    inside = value if isinstance(value, list) else [value]
    return any(isinstance(each, dict) or (isinstance(each, str) and TESTS.match(each)) for each in inside)
