"""Test the verifier on reference answers of benchmarks: each must pass as it is and rewritten, and others must fail.

    python tools/verifier_selftest.py BENCHMARK...

A benchmark is a file, NAME=FILE or a known name. Exceptions are listed; the exit code is 1 if an answer fails as it is.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nemo_uecr.data.benchmarks import load_benchmarks
from nemo_uecr.data.references import check_references
from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import ComparisonPool, check_responses, comparison_pool
from nemo_uecr.verifier.spelling import without_point

_ALL, _INTEGER, _FRACTION = r".*", r"(-?)(\d)(\d*)", r"(-?)\\frac\{(\d+)\}\{(\d+)\}"
_MATRIX = r"\\begin\{([bp]matrix)\}(.*)\\end\{\1\}"
_POINT = r"(?:\\left)?([\[(])([^,()\[\]]+),(?!\s*\2\s*[\])\\])([^,()\[\]]+?)(?:\\right)?([\])])"
_UNIT = r"(.*\d.*?)(?:\\(?:text|mbox)\{[^{}]*\}(?:\^\d)?|\^\\circ)"
_UNKNOWN = re.compile(r"(?<![A-Za-z\\])[a-df-hj-z](?![A-Za-z])")
_COMMAND = re.compile(r"\\(?:text|mbox|begin|end)\{[^{}]*\}|\\[A-Za-z]+")
#: Beside a sign, but not where a comma sets thousands apart: `58, 500` is a list.
_SPACED = re.compile(r"(?<=[-+=^{}()])|(?=[-+=^{}()])|(?<=,)(?!\d{3}(?!\d)|\\!)|(?=,(?!\d{3}(?!\d)|\\!))")
#: Where "plus one" makes no sense: texts, lists, intervals, equations, units.
_WORDS = re.compile(r"\\text|\\mbox|,|=|\\in\b|\\cup|\\begin|\\pm|\\infty|_|%|\\circ|\\\$")

#: Forms of an answer: a name, the answers that have it, and how it is written.
Forms = Sequence[tuple[str, str, str | Callable[[re.Match[str]], str]]]
REWRITTEN: Forms = (
    ("spaced", _ALL, lambda m: _SPACED.sub(" ", m[0]).replace("{ , }", "{,}")),
    ("dollar signs", _ALL, lambda m: f"${without_point(m[0])}$"),
    ("final point", _ALL, lambda m: f"{without_point(m[0])}."),
    ("decimal", _INTEGER, r"\g<0>.0"),
    ("named", _INTEGER, r"n = \g<0>"),
    ("named sum", _INTEGER, r"m+n = \g<0>"),
    ("scientific", _INTEGER, lambda m: f"{m[1]}{m[2]}.{m[3] or 0}e{len(m[3])}"),
    ("power of ten", _INTEGER, lambda m: rf"{m[1]}{m[2]}.{m[3] or 0} \times 10^{{{len(m[3])}}}"),
    ("thousands", r"-?[1-9]\d{3,}", lambda m: f"{int(m[0]):,}".replace(",", "{,}")),
    ("slash", _FRACTION, r"\1\2/\3"),
    ("unreduced", _FRACTION, lambda m: rf"{m[1]}\frac{{{3 * int(m[2])}}}{{{3 * int(m[3])}}}"),
    ("long decimal", _FRACTION, lambda m: f"{m[1]}{int(m[2]) / int(m[3]):.12f}"),
    ("display fraction", r".*\\frac.*", lambda m: m[0].replace(r"\frac", r"\dfrac")),
    ("without blanks", _MATRIX, lambda m: m[0].replace(" ", "")),
    ("bmatrix", _MATRIX, r"\\begin{bmatrix}\2\\end{bmatrix}"),
    ("array", _MATRIX, r"\\left( \\begin{array}{cc}\2\\end{array} \\right)"),
    ("inequality", r"\[([^,()\[\]]+),([^,()\[\]]+)\)", r"\1 \\le x < \2"),
    ("sized brackets", r"\((?!.*\\left).*", lambda m: re.sub(r"([\[(])|([\])])", _sized, m[0])),
)
#: What looks like the answer and is another one.
CHANGED: Forms = (
    ("another digit", r"(.*)(\d)(\D*)", lambda m: f"{m[1]}{8 if m[2] == '9' else int(m[2]) + 1}{m[3]}"),
    ("as a sum", _INTEGER, lambda m: f"{int(m[0]) - 1} + 1"),
    ("as a product", _INTEGER, r"1 \\times \g<0>"),
    ("a letter more", _INTEGER, r"\g<0>t"),
    ("a digit in a text", _INTEGER, r"\g<0>\\text{8}"),
    ("another sign", rf"(?=.*[1-9])(?:{_INTEGER}|{_FRACTION})", lambda m: m[0][1:] if m[0][0] == "-" else f"-{m[0]}"),
    ("another letter", _ALL, lambda m: _with_another_letter(m[0])),
    ("another unit", _UNIT, lambda m: rf"{m[1]}\text{{ {'inches' if 'acre' in m[0] else 'acres'} }}"),
    ("places changed", _POINT, r"\1\3,\2\4"),
    ("another bracket", _POINT, lambda m: f"{'[' if m[1] == '(' else '('}{m[2]},{m[3]}{m[4]}"),
)


@dataclass(frozen=True)
class Trial:
    """One response made from a reference answer, and the verdict it must get."""

    problem: str
    form: str
    answer: str
    response: str
    expected: Verdict


def trials(problem: str, answer: str) -> list[Trial]:
    """Every form that makes sense for this answer; ``problem`` is the id for the list of failures."""

    def trial(form: str, text: str, expected: Verdict) -> Trial:
        return Trial(problem, form, answer, rf"Therefore the result is \boxed{{{text}}}", expected)

    right = {"itself": answer} | _forms(REWRITTEN, answer)
    wrong = _forms(CHANGED, answer) | _changed_rows(answer)
    wrong |= {"another word": r"\text{none of these}"} if _WORDS.search(answer) else {"plus one": f"{answer} + 1"}
    wrong |= {"two answers": rf"{answer} \text{{ or }} 987654"}
    made = [trial(form, text, Verdict.CORRECT) for form, text in right.items()]
    earlier = rf"First I thought \boxed{{-987654}}. {made[0].response}"
    return [
        *made,
        *(trial(form, text, Verdict.WRONG) for form, text in wrong.items()),
        Trial(problem, "after another box", answer, earlier, Verdict.CORRECT),
        Trial(problem, "no box", answer, f"The answer is {answer}.", Verdict.NO_ANSWER),
    ]


def _forms(forms: Forms, answer: str) -> dict[str, str]:
    made = {form: re.sub(rf"(?s)\A(?:{pattern})\Z", text, answer) for form, pattern, text in forms}
    return {form: text for form, text in made.items() if form == "spaced" or text != answer}


def _sized(bracket: re.Match[str]) -> str:
    return (r"\left" if bracket[1] else r"\right") + bracket[0]


def _with_another_letter(answer: str) -> str:
    """The answer with its first unknown changed; unchanged where it has none."""
    bare = _COMMAND.sub(lambda command: "\\" * len(command[0]), answer)
    unknown = _UNKNOWN.search(bare)
    if unknown is None:
        return answer
    return f"{answer[: unknown.start()]}{'v' if unknown[0] == 'w' else 'w'}{answer[unknown.end() :]}"


def _changed_rows(answer: str) -> dict[str, str]:
    """Matrices of the same entries in other places, or of fewer."""
    matrix = re.fullmatch(_MATRIX, answer, re.DOTALL)
    if matrix is None:
        return {}
    rows = [[cell.strip() for cell in row.split("&")] for row in matrix[2].strip().split(r"\\")]
    forms = {"rows changed": rows[::-1], "transposed": [list(column) for column in zip(*rows, strict=True)]}
    forms |= {"a row less": rows[:-1], "one row": [[cell for row in rows for cell in row]]}
    bodies = {form: r" \\ ".join(map(" & ".join, other)) for form, other in forms.items() if other not in (rows, [])}
    return {form: rf"\begin{{pmatrix}} {body} \end{{pmatrix}}" for form, body in bodies.items()}


#: Failures of a form that are printed.
SHOWN = 3


def run_trials(made: Sequence[Trial], pool: ComparisonPool) -> list[tuple[Trial, Verdict]]:
    """The trials that do not get the verdict they must get, each with the verdict it gets."""
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
    for form in failed:
        of_form = [(trial, got) for trial, got in failures if trial.form == form]
        lines += [
            f"  failure: problem {trial.problem}, {form}: {trial.response!r} against {trial.answer!r} is {got.value}, "
            f"expected {trial.expected.value}"
            for trial, got in of_form[:SHOWN]
        ]
        if len(of_form) > SHOWN:
            lines.append(f"  and {len(of_form) - SHOWN} more failures: {form}")
    return lines, failed["itself"] > 0


def main(benchmarks: Sequence[str]) -> int:
    """Test the answers of each benchmark; 1 if one fails as it is."""
    fails_itself = False
    with comparison_pool(os.cpu_count() or 1) as pool:
        for name, benchmark in load_benchmarks(list(benchmarks)).items():
            check_references(name, benchmark.problems)
            lines, failed = self_test({problem.id: problem.answer for problem in benchmark.problems}, pool)
            sys.stdout.write("".join(f"{line}\n" for line in (f"{name}: {lines[0]}", *lines[1:])))
            fails_itself |= failed
    return int(fails_itself)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
