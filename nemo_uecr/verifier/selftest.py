"""Tests the verifier: a reference answer must verify against itself and its rewritings, and not against others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import ComparisonPool, check_responses

_INTEGER = re.compile(r"-?\d+")
#: Beside a sign, but not where a comma sets thousands apart: `58, 500` is a list.
_SPACED = re.compile(r"(?<=[-+=^{}()])|(?=[-+=^{}()])|(?<=,)(?!\d{3}(?!\d)|\\!)|(?=,(?!\d{3}(?!\d)|\\!))")
_FRACTION = re.compile(r"(-?)\\frac\{(\d+)\}\{(\d+)\}")
_MATRIX = re.compile(r"\\begin\{([bp]matrix)\}(.*)\\end\{\1\}", re.DOTALL)
_POINT = re.compile(r"(?:\\left)?([\[(])([^,()\[\]]+),([^,()\[\]]+?)(?:\\right)?([\])])")
_UNIT = re.compile(r"\\(?:text|mbox)\{[^{}]*\}(?:\^\d)?$|\^\\circ$")
_UNKNOWN = re.compile(r"(?<![A-Za-z\\])[a-df-hj-z](?![A-Za-z])")
_COMMAND = re.compile(r"\\(?:text|mbox|begin|end)\{[^{}]*\}|\\[A-Za-z]+")
#: Where "plus one" makes no sense: texts, lists, intervals, equations, units.
_WORDS = re.compile(r"\\text|\\mbox|,|=|\\in\b|\\cup|\\begin|\\pm|\\infty|_|%|\\circ|\\\$")


@dataclass(frozen=True)
class Trial:
    """One response made from a reference answer, and the verdict it must get."""

    problem: str
    form: str
    answer: str
    response: str
    expected: Verdict


def trials(problem: str, answer: str) -> list[Trial]:
    """Every form that makes sense for this answer; `problem` is the id for the list of failures."""

    def trial(form: str, text: str, expected: Verdict) -> Trial:
        return Trial(problem, form, answer, rf"Therefore the result is \boxed{{{text}}}", expected)

    texts = {"itself": answer, "spaced": _SPACED.sub(" ", answer)} | _other_forms(answer)
    made = [trial(form, text, Verdict.CORRECT) for form, text in texts.items()]
    earlier = rf"First I thought \boxed{{-987654}}. {made[0].response}"
    return [
        *made,
        *(trial(form, text, Verdict.WRONG) for form, text in _changed(answer).items()),
        Trial(problem, "after another box", answer, earlier, Verdict.CORRECT),
        trial("another word", r"\text{none of these}", Verdict.WRONG)
        if _WORDS.search(answer)
        else trial("plus one", f"{answer} + 1", Verdict.WRONG),
        trial("two answers", rf"{answer} \text{{ or }} 987654", Verdict.WRONG),
        Trial(problem, "no box", answer, f"The answer is {answer}.", Verdict.NO_ANSWER),
    ]


def run_trials(made: Sequence[Trial], pool: ComparisonPool) -> list[tuple[Trial, Verdict]]:
    """The trials that do not get the verdict they must get, with the one they get."""
    checked = check_responses([trial.response for trial in made], [trial.answer for trial in made], pool)
    outcomes = zip(made, checked, strict=True)
    return [(trial, outcome.verdict) for trial, outcome in outcomes if outcome.verdict is not trial.expected]


def self_test(answers: Mapping[str, str], pool: ComparisonPool) -> tuple[list[str], bool]:
    """Reference answers, by problem, in all their forms: lines for a terminal, and whether one fails against itself."""
    made = [trial for problem, answer in answers.items() for trial in trials(problem, answer)]
    failures = run_trials(made, pool)
    failed = Counter(trial.form for trial, _ in failures)
    lines = [f"{len(made) - len(failures)} of {len(made)} as expected"]
    for form, number in Counter(trial.form for trial in made).items():
        lines.append(f"  {number - failed[form]:>5} of {number:>5}  {form}")
    for trial, got in failures:
        lines.append(
            f"  failure: problem {trial.problem}, {trial.form}: {trial.response!r} against {trial.answer!r} "
            f"is {got.value}, expected {trial.expected.value}"
        )
    return lines, failed["itself"] > 0


def _other_forms(answer: str) -> dict[str, str]:
    forms: dict[str, str] = {"dollar signs": f"${answer}$", "final point": f"{answer}."}
    if _INTEGER.fullmatch(answer):
        forms |= {"decimal": f"{answer}.0", "named": f"n = {answer}", "named sum": f"m+n = {answer}"}
        sign, digits = "-" * answer.startswith("-"), answer.removeprefix("-")
        mantissa, power = f"{sign}{digits[0]}.{digits[1:] or 0}", len(digits) - 1
        forms |= {"scientific": f"{mantissa}e{power}", "power of ten": rf"{mantissa} \times 10^{{{power}}}"}
        if abs(int(answer)) >= 1000:
            forms["thousands"] = f"{int(answer):,}".replace(",", "{,}")
    if match := _FRACTION.fullmatch(answer):
        sign, top, bottom = match.groups()
        forms |= {
            "slash": f"{sign}{top}/{bottom}",
            "unreduced": rf"{sign}\frac{{{3 * int(top)}}}{{{3 * int(bottom)}}}",
            "long decimal": f"{sign}{int(top) / int(bottom):.12f}",
        }
    if match := _MATRIX.fullmatch(answer):
        body = match[2].strip()
        forms["without blanks"] = answer.replace(" ", "")
        forms["bmatrix"] = rf"\begin{{bmatrix}} {body} \end{{bmatrix}}"
        forms["array"] = rf"\left( \begin{{array}}{{cc}} {body} \end{{array}} \right)"
    if r"\frac" in answer:
        forms["display fraction"] = answer.replace(r"\frac", r"\dfrac")
    if "(" in answer and r"\left" not in answer and answer[0] == "(":
        forms["sized brackets"] = re.sub(r"([\[(])", r"\\left\1", re.sub(r"([\])])", r"\\right\1", answer))
    return forms


def _changed(answer: str) -> dict[str, str]:
    """What looks like the answer and is another by a digit, a sign, a letter, a unit, a bracket, a place or a row."""
    forms: dict[str, str] = {}
    if digits := list(re.finditer(r"\d", answer)):
        place, digit = digits[-1].start(), int(digits[-1][0])
        forms["another digit"] = f"{answer[:place]}{digit + 1 if digit < 9 else 8}{answer[place + 1 :]}"
    if _INTEGER.fullmatch(answer):
        forms |= {
            "as a sum": f"{int(answer) - 1} + 1",
            "as a product": rf"1 \times {answer}",
            "a letter more": f"{answer}t",
        }
        forms["a digit in a text"] = rf"{answer}\text{{8}}"
    if (_INTEGER.fullmatch(answer) or _FRACTION.fullmatch(answer)) and answer.strip("0"):
        forms["another sign"] = answer.removeprefix("-") if answer.startswith("-") else f"-{answer}"
    bare = _COMMAND.sub(lambda command: "\\" * len(command[0]), answer)
    if unknown := _UNKNOWN.search(bare):
        place = unknown.start()
        forms["another letter"] = f"{answer[:place]}{'w' if unknown[0] != 'w' else 'v'}{answer[place + 1 :]}"
    if unit := _UNIT.search(answer) if digits else None:
        forms["another unit"] = rf"{answer[: unit.start()]}\text{{ acres}}"
    if (point := _POINT.fullmatch(answer)) and point[2].strip() != point[3].strip():
        forms["places changed"] = f"{point[1]}{point[3]},{point[2]}{point[4]}"
        forms["another bracket"] = f"{'[('['[('.index(point[1]) - 1]}{point[2]},{point[3]}{point[4]}"
    if match := _MATRIX.fullmatch(answer):
        rows = [[cell.strip() for cell in row.split("&")] for row in match[2].strip().split(r"\\")]
        changed = {"rows changed": rows[::-1], "transposed": [list(column) for column in zip(*rows, strict=True)]}
        changed |= {"a row less": rows[:-1], "one row": [[cell for row in rows for cell in row]]}
        for form, other in changed.items():
            if other != rows and other:
                body = r" \\ ".join(" & ".join(row) for row in other)
                forms[form] = rf"\begin{{pmatrix}} {body} \end{{pmatrix}}"
    return forms
