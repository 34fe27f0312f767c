r"""A judge of process quality for the demo's arithmetic: it prefers the response with fewer wrong steps.

It reads the blinded pairs of ``nemo-uecr audit signal SCORES --write-pairs DIR`` and writes a judge's file:

  python examples/audits/arithmetic_judge.py DIR/pairs.jsonl verdicts.jsonl

A step is a line ``a op b ... = c``, worked from left to right as the demo's task does. A real study puts a person or a
strong model in this place.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

STEP = re.compile(r"(-?\d+)((?:[-+*]-?\d+)+)=(-?\d+)")
OPERATION = re.compile(r"([-+*])(-?\d+)")


def wrong_steps(response: str) -> int | None:
    """Steps whose result is wrong; None where no line is a step."""
    steps = [STEP.fullmatch(line.replace(" ", "")) for line in response.splitlines()]
    found = [step for step in steps if step is not None]
    return sum(_value(step) != int(step[3]) for step in found) if found else None


def _value(step: re.Match[str]) -> int:
    value = int(step[1])
    for sign, operand in OPERATION.findall(step[2]):
        value = {"+": value + int(operand), "-": value - int(operand), "*": value * int(operand)}[sign]
    return value


def preferred(first: str, second: str) -> str:
    """Which response has fewer wrong steps."""
    errors = wrong_steps(first), wrong_steps(second)
    if errors[0] is None or errors[1] is None:
        return "unjudgeable"
    return "tie" if errors[0] == errors[1] else "first" if errors[0] < errors[1] else "second"


def main(pairs: Path, verdicts: Path) -> None:
    """Judge every pair."""
    rows = [json.loads(line) for line in pairs.read_text(encoding="utf-8").splitlines()]
    judged = [{"pair": row["pair"], "preferred": preferred(row["first"], row["second"])} for row in rows]
    verdicts.write_text("".join(json.dumps(row) + "\n" for row in judged), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
