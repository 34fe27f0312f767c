"""A judge for the demo's written steps: exact, because every step is one operation on a known value.

`python examples/audits/step_judge.py judging/steps.jsonl labels.jsonl` labels what
`nemo-uecr audit localization --write-steps judging` wrote. A step is valid when it is the problem's next operation on
the value that stands there, computed right; after an error it is judged by the value that the response has. What is no
equation, the boxed answer among it, is no reasoning.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from nemo_uecr.demo.task import Operation
from nemo_uecr.files import replace_file

_QUESTION = re.compile(r"Start with (\d+): (.*) = \?")
_OPERATION = re.compile(r"([-+*])(\d+)")
_EQUATION = re.compile(r"(-?\d+)((?:[-+*]\d+)+)=(-?\d+)")


def judge(question: str, steps: Sequence[str]) -> tuple[list[str], int | None]:
    """A label a step, and the number of the first error from 1; None without one."""
    found = _QUESTION.fullmatch(question)
    if found is None:
        return ["not_reasoning"] * len(steps), None
    value, operations = int(found[1]), _operations(found[2])
    labels: list[str] = []
    done = 0
    for step in steps:
        equation = _EQUATION.fullmatch(step.replace(" ", ""))
        if equation is None:
            labels.append("not_reasoning")
            continue
        written = _operations(equation[2])
        right = int(equation[1]) == value and written == operations[done : done + 1]
        labels.append("valid" if right and written[0].apply(value) == int(equation[3]) else "invalid")
        value, done = int(equation[3]), done + len(written)
    return labels, labels.index("invalid") + 1 if "invalid" in labels else None


def _operations(text: str) -> list[Operation]:
    return [Operation(symbol, int(operand)) for symbol, operand in _OPERATION.findall(text)]


def main(steps: Path, out: Path) -> None:
    """Label a file of items."""
    lines = []
    for line in steps.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        labels, first = judge(item["question"], [step["text"] for step in item["steps"]])
        lines.append(json.dumps({"item": item["item"], "labels": labels, "first_error": first}) + "\n")
    replace_file(out, "".join(lines).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
