r"""Chains of arithmetic with written steps: problems, solutions, data files and a tokenizer.

The task: start with a number, apply the operations from left to right (without precedence), write every step on its own
line, and box the last value. All values are integers from 0 to 99. A problem of level k has k + 1 operations; here is
one of level 2:

    question   Start with 10: +5 *3 -4 = ?
    solution   10+5=15
               15*3=45
               45-4=41
               \boxed{41}
"""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LEVELS = (1, 2, 3, 4, 5)
LARGEST_VALUE = 99
FIRST_VALUES = range(2, 100)
ADDENDS = range(2, 20)
FACTORS = range(2, 4)
FACTOR_SHARE = 0.25
APPLY: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
#: Errors of a demonstrator's wrong lines.
SLIPS = (-10, -2, -1, 1, 2, 10)

MODEL_MAX_LENGTH = 512
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
PLAIN_TOKENS = ("<think>", "</think>", "\\boxed{")
# Single digits, words and signs with the space before them, line breaks, other blanks.
PIECES = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|[\r\n]+|[^\S\r\n]+"
# The merges are learned from this: each word of the task and of the template becomes one token.
MERGE_TEXT = ("system", "user", "assistant", "\n\n", "Start with : + - * = ?")
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}"""


# Problems


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on the running value; `symbol` is +, - or *."""

    symbol: str
    operand: int

    def apply(self, value: int) -> int:
        """The value after this operation."""
        return APPLY[self.symbol](value, self.operand)

    def __str__(self) -> str:
        return f"{self.symbol}{self.operand}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A first number and the operations to apply to it in order."""

    start: int
    operations: tuple[Operation, ...]

    @property
    def question(self) -> str:
        """The question as the student reads it."""
        return f"Start with {self.start}: {' '.join(map(str, self.operations))} = ?"

    @property
    def answer(self) -> str:
        """The value after the last operation."""
        return str(reduce(lambda value, operation: operation.apply(value), self.operations, self.start))


def sample_problem(rng: random.Random, level: int) -> Problem:
    """Draw one problem of a level; all its values stay within 0..99."""
    start = value = rng.choice(FIRST_VALUES)
    operations = []
    for _ in range(level + 1):
        operations.append(_sample_operation(rng, value))
        value = operations[-1].apply(value)
    return Problem(start, tuple(operations))


def sample_unseen(rng: random.Random, level: int, seen: Set[str]) -> Problem:
    """Draw a problem of a level whose question is not in `seen`."""
    while (problem := sample_problem(rng, level)).question in seen:
        pass
    return problem


def _sample_operation(rng: random.Random, value: int) -> Operation:
    factors = [Operation("*", factor) for factor in FACTORS if 0 < value * factor <= LARGEST_VALUE]
    if factors and rng.random() < FACTOR_SHARE:
        return rng.choice(factors)
    terms = [Operation("+", addend) for addend in ADDENDS if value + addend <= LARGEST_VALUE]
    return rng.choice(terms + [Operation("-", addend) for addend in ADDENDS if value - addend >= 0])


# Solutions


def worked_solution(problem: Problem, rng: random.Random, *, skip_rate: float, error_rate: float) -> str:
    """Steps and boxed answer of a demonstrator who skips steps and makes errors at given rates.

    A skipped step joins the next line, as in `10+5*3=45`. An error changes the value of a line, and the following lines
    continue from it: the text is consistent, and its answer is almost always wrong.
    """
    lines, value, line = [], problem.start, str(problem.start)
    for position, operation in enumerate(problem.operations, start=1):
        value = operation.apply(value)
        line += str(operation)
        if position == len(problem.operations) or rng.random() >= skip_rate:
            if error_rate > 0 and rng.random() < error_rate:
                slipped = [value + slip for slip in SLIPS]
                # After an earlier error, no value may be in the range.
                value = rng.choice([other for other in slipped if 0 <= other <= LARGEST_VALUE] or slipped)
            lines.append(f"{line}={value}")
            line = str(value)
    return "\n".join([*lines, f"\\boxed{{{value}}}"])


# Files


def write_problems(
    rng: random.Random, held_out: Mapping[Path, Sequence[int]], train: Path, train_levels: Sequence[int], count: int
) -> None:
    """Write held-out sets with given levels and a training set of ``count`` problems; all questions differ."""
    seen = set[str]()
    for path, levels in held_out.items():
        _write_distinct(path, rng, levels, seen)
    _write_distinct(train, rng, [rng.choice(train_levels) for _ in range(count)], seen)


def _write_distinct(path: Path, rng: random.Random, levels: Sequence[int], seen: set[str]) -> None:
    rows = []
    for number, level in enumerate(levels, start=1):
        problem = sample_unseen(rng, level, seen)
        seen.add(problem.question)
        rows.append({"id": f"{path.stem}-{number}", "question": problem.question, "answer": problem.answer})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_questions(paths: Iterable[Path]) -> set[str]:
    """The questions of files written by `write_problems`."""
    return {json.loads(line)["question"] for path in paths for line in path.read_text(encoding="utf-8").splitlines()}


# Tokens


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits and a Qwen-like chat template; each word of the task is one token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), behavior="isolated"), bytes_alone])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        show_progress=False,
    )
    bpe.train_from_iterator(MERGE_TEXT, trainer)
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MODEL_MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
