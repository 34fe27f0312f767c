r"""The answer of a response: the content of its last complete ``\boxed{...}``, and the verdict on it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

#: No real answer is longer.
MAX_ANSWER_CHARS = 2_000
#: A run of backslashes, perhaps with the rest of the marker, or a brace. Models over-escape, so any number of
#: backslashes may stand before "boxed". The run is one match, so a megabyte of backslashes is read once.
_PIECE = re.compile(r"(?P<escape>\\+)(?P<marker>boxed\{)?|[{}]")


class Verdict(enum.StrEnum):
    """Why a response is or is not rewarded."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class Checked:
    """A verdict and the answer text it is about; None where the response has no answer."""

    verdict: Verdict
    extracted: str | None

    @property
    def reward(self) -> float:
        """R^task: 1 for a correct answer, 0 for everything else."""
        return 1.0 if self.verdict is Verdict.CORRECT else 0.0


def last_boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{...}`` whose braces close; None when there is none.

    Braces nest, and an escaped brace (``\{``) does not count. An unclosed last box is skipped in favour of an earlier
    complete one: a response cut off while it repeats its answer has already given it. A box that holds only another
    has that one's content; with something beside it, the inner box is part of the outer answer. One pass, linear in
    the length of the text.
    """
    open_braces: list[tuple[int, int] | None] = []  # start of an open box and of its content; None for a plain brace
    outer = inner = (-1, -1)  # spans of the last box and of its content
    escaped = -1  # position of a character that a backslash escapes
    for piece in _PIECE.finditer(text):
        if piece["marker"] is not None:
            open_braces.append((piece.start(), piece.end()))
        elif piece["escape"] is not None:
            escaped = piece.end() if len(piece["escape"]) % 2 else -1
        elif piece.start() == escaped:
            continue
        elif piece[0] == "{":
            open_braces.append(None)
        elif open_braces and (opened := open_braces.pop()) is not None:
            start, end = opened[1], piece.start()
            if end - start <= MAX_ANSWER_CHARS:
                alone = outer[0] >= start and not (text[start : outer[0]] + text[outer[1] : end]).strip()
                outer, inner = (opened[0], end + 1), inner if alone else (start, end)
    return None if inner[0] < 0 else text[slice(*inner)].strip()


def reference_answer(answer: str) -> str:
    """The reference answer without its box, if it has one."""
    boxed = last_boxed(answer)
    return answer if boxed is None else boxed
