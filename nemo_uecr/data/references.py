"""Whether the verifier can judge the reference answers, and whether the prompts ask for what it reads."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from nemo_uecr.data.problems import CHOICES, PARTS, Problem, json_of, options_of, text_of
from nemo_uecr.errors import DataError
from nemo_uecr.verifier.extract import Verdict, reference_answer
from nemo_uecr.verifier.pool import SHARED, check_responses

log = logging.getLogger(__name__)

#: How questions ask for an answer that the verifier, which reads a box, does not see.
OTHER_FORMS = {
    "after ####": re.compile("####"),
    "after Answer:": re.compile(
        r"(?i)answer:\W{0,3}(?:\$answer|\$?\[|\{|<|\$\w+\$|x\b|your)"
        r"|\b(?:after|with|form|format|write|as)\s+(?:the\s+\w+\s+)?[\"'`\u201c\u2018*]*(?:the )?(?:final )?answer:"
    ),
    "in <answer> tags": re.compile("(?i)<answer>"),
    "as JSON": re.compile(r"(?i)\b(?:as|in|valid|of|a)\s+json\b"),
}
#: Tests of code, which are no answers.
TESTS = re.compile(r"\s*(?:assert\b|def |import |class |from \w+ import )")
#: LaTeX whose backslashes were escaped once more, and characters as HTML has them: equal to themselves alone.
ESCAPED = re.compile(
    r"(?<!\\)\\\\(?:[dt]?frac|sqrt|text|pi|cdot|times|left|infty)(?![A-Za-z])|&(?:lt|gt|le|ge|amp|nbsp|#\d+);"
)
#: Marks of chats, and what some templates end with.
RENDERED = re.compile(
    r"<\|\w+\|>|<\uff5c[^<>]+\uff5c>|\[/?INST\]|<(?:start|end)_of_turn>"
    r"|(?:^|\n)(?:### )?(?:Assistant|Response)\s*:\s*(?:<think>)?\s*$"
)
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
            f"{first.answer[:80]!r} of problem {first.id!r}. Expected final answers alone, such as 7/2: no sentences, "
            "worked solutions, HTML or doubled backslashes; name their field: data.answer_key"
        )
        if refuse and 2 * len(unjudged) > len(problems):
            raise DataError(fault)
        log.warning("%s", fault)
    turns = [turn for each in problems if "boxed" not in (turn := _shown(each, template))]
    for form, asks in OTHER_FORMS.items():
        asking = [turn for turn in turns if asks.search(turn)]
        if 2 * len(asking) > len(problems):
            log.warning(
                "%s: %d of %d prompts ask for the answer %s, as in %r, and the verifier reads \\boxed{} alone; name "
                "the field of the bare question, data.question_key (extra_info.question in verl's rows), and ask for "
                "the box in data.prompt_template, or write a reward",
                name, len(asking), len(problems), form, _around(asks, asking[0]),
            )  # fmt: skip
    if 2 * len(wrapped := [each for each in problems if RENDERED.search(each.question)]) > len(problems):
        log.warning(
            "%s: %d of %d questions look like prompts that are rendered already, as %r; a model's chat template wraps "
            "them again: name the field of the bare question, data.question_key",
            name, len(wrapped), len(problems), wrapped[0].question[-60:],
        )  # fmt: skip
    if fault := _choice_fault(problems, template):
        if refuse:
            raise DataError(f"{name}: {fault}")
        log.warning("%s: %s", name, fault)
    for part in (part for part in PARTS if f"{{{part}}}" not in template):
        if 2 * sum(_hides(problem, part) for problem in problems) > len(problems):
            log.warning(
                "%s: the questions do not show their field %r; name it in the template, as in '{%s} {question}'. "
                "Of options the answer must be the letter", name, part, part,
            )  # fmt: skip


def _shown(problem: Problem, template: str) -> str:
    """What the model is shown: the turns before the question, such as a system turn, and the question's own."""
    return "\n".join([*(turn["content"] for turn in problem.context), problem.turn(template or "{question}")])


def _around(asks: re.Pattern[str], turn: str) -> str:
    """The line of a prompt that asks for another form."""
    found = asks.search(turn)
    place = 0 if found is None else found.start()
    return turn[turn.rfind("\n", 0, place) + 1 :].partition("\n")[0].strip()[-100:]


def _choice_fault(problems: Sequence[Problem], template: str) -> str:
    """What is wrong with most answers as choices among options; empty where nothing is."""
    indices, hidden = [], []
    for problem in problems:
        part = next((part for part in CHOICES if problem.columns.get(part)), "")
        options = options_of(problem.columns[part]) if part else None
        answer = reference_answer(problem.answer).strip("() .")
        if options and answer in options:
            hidden += [problem] if f"{{{part}}}" not in template and _hides(problem, part) else []
        elif options and answer.isdigit() and int(answer) <= len(options) and answer not in options.values():
            indices.append(problem)
    if 2 * len(indices) > len(problems):
        return (
            f"{len(indices)} of {len(problems)} answers are numbers of options, such as {indices[0].answer!r} of "
            f"problem {indices[0].id!r}, and the options have letters; expected the letters: A for the first"
        )
    if 2 * len(hidden) > len(problems):
        return (
            f"{len(hidden)} of {len(problems)} answers are letters of options that the questions do not show; name "
            "them in data.prompt_template, as in '{question} {options}'"
        )
    return ""


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
        or _is_data(answer)
    ]


def _is_data(answer: str) -> bool:
    """Whether an answer is an object, a list of objects or of tests: what code is checked with, and no text states."""
    value = json_of(answer) if answer[:1] in "[{" else answer
    inside = value if isinstance(value, list) else [value]
    return any(isinstance(each, dict) or (isinstance(each, str) and TESTS.match(each)) for each in inside)
