"""The arithmetic task: problems, solutions with skipped steps and slips, files, tokens."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

import pytest

from nemo_uecr.demo.task import (
    LEVELS,
    SLIPS,
    Operation,
    Problem,
    build_tokenizer,
    read_questions,
    sample_problem,
    worked_solution,
    write_problems,
)

STEP = re.compile(r"(-?\d+)((?:[-+*]\d+)+)=(-?\d+)")
QUESTION = "Start with 10: +5 *3 -4 = ?"


def left_to_right(start: int, chain: str) -> list[int]:
    """Values of `chain`, such as "+18*2", recomputed from the text alone."""
    values = [start]
    for symbol, operand in re.findall(r"([-+*])(\d+)", chain):
        before, number = values[-1], int(operand)
        values.append({"+": before + number, "-": before - number, "*": before * number}[symbol])
    return values


def lines_of(text: str) -> list[tuple[int, str, int]]:
    """First number, operations and result of each line but the box."""
    matches = [STEP.fullmatch(line) for line in text.split("\n")[:-1]]
    assert None not in matches
    return [(int(match[1]), match[2], int(match[3])) for match in matches if match]


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    rng = random.Random(5)
    return [sample_problem(rng, level) for level in LEVELS for _ in range(200)]


def test_a_problem_by_hand() -> None:
    problem = Problem(10, (Operation("+", 5), Operation("*", 3), Operation("-", 4)))  # (10 + 5) * 3 - 4 = 41
    assert problem.question == QUESTION
    assert problem.answer == "41"  # with precedence it would be 10 + 15 - 4 = 21
    rng = random.Random(0)
    assert worked_solution(problem, rng, skip_rate=0, error_rate=0) == "10+5=15\n15*3=45\n45-4=41\n\\boxed{41}"
    assert worked_solution(problem, rng, skip_rate=1, error_rate=0) == "10+5*3-4=41\n\\boxed{41}"


@pytest.mark.parametrize("skip_rate", [0.0, 0.5, 1.0])
def test_answers_agree_with_the_question_and_every_line_of_a_solution_is_right(
    problems: list[Problem], skip_rate: float
) -> None:
    rng = random.Random(1)
    for number, problem in enumerate(problems):
        match = re.fullmatch(r"Start with (\d+): (.*) = \?", problem.question)
        values = left_to_right(int(match[1]), match[2])
        assert str(values[-1]) == problem.answer
        assert all(0 <= value <= 99 for value in values)
        assert len(values) - 2 == number // 200 + 1  # the level
        text = worked_solution(problem, rng, skip_rate=skip_rate, error_rate=0)
        value = problem.start
        for start, operations, result in lines_of(text):
            assert start == value
            value = left_to_right(start, operations)[-1]
            assert result == value
        assert text.endswith(f"\\boxed{{{problem.answer}}}")
        assert "".join(operations for _, operations, _ in lines_of(text)) == "".join(map(str, problem.operations))


@pytest.mark.parametrize("error_rate", [0.2, 1.0])
def test_lines_slip_at_the_rate_and_go_on_from_the_slip(error_rate: float) -> None:
    rng, off = random.Random(0), list[int]()
    for _ in range(400):
        text = worked_solution(sample_problem(rng, 5), rng, skip_rate=0, error_rate=error_rate)
        lines = lines_of(text)
        assert len(lines) == 6  # level 5 has six operations, one a line
        assert all(value == start for (_, _, value), (start, _, _) in itertools.pairwise(lines))
        assert text.endswith(f"\\boxed{{{lines[-1][2]}}}")
        off += [value - left_to_right(start, operations)[-1] for start, operations, value in lines]
    assert set(off) <= {0, *SLIPS}
    # 2,400 lines: a share of 0.2 has a standard error of 0.008
    assert sum(gap != 0 for gap in off) / len(off) == pytest.approx(error_rate, abs=0.035)


def test_files_share_no_question(tmp_path: Path) -> None:
    held_out = {tmp_path / "bench" / f"level{level}.jsonl": [level] * 300 for level in (1, 2)}
    train = tmp_path / "train.jsonl"
    write_problems(random.Random(3), held_out, train, (1,), 300)
    paths = [*held_out, train]
    assert len(read_questions(paths)) == 900
    rows = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    assert rows[1][0]["id"] == "level2-1"
    for row, level in zip(rows, (1, 2, 1), strict=True):
        assert all(sum(each["question"].count(sign) for sign in "+-*") == level + 1 for each in row)
        assert all(isinstance(each["answer"], str) for each in row)


def test_tokens() -> None:
    tokenizer = build_tokenizer()
    messages = [{"role": "user", "content": QUESTION}]
    prompt = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    for thinking, text in ((True, prompt), (False, prompt + "<think>\n\n</think>\n\n")):
        options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": thinking}
        assert tokenizer.apply_chat_template(messages, **options) == text
    # Single digits; one token for the box, each word and the end of the turn.
    for text in (
        "4~7~+~1~8~=~6~5~\n~\\boxed{~6~5~}~<|im_end|>",
        "Start~ with~ ~4~7~:~ +~1~8~ =~ ?",
        "<think>~\n\n~</think>",
    ):
        ids = tokenizer(text.replace("~", ""), add_special_tokens=False)["input_ids"]
        assert "~".join(map(tokenizer.decode, ids)) == text
