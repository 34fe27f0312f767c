r"""The answer of a response: the content of its last ``\boxed{...}`` after any thinking, and the verdict on it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

#: Longest answer; a longer box is ignored.
MAX_ANSWER_CHARS = 2_000
#: What opens or closes a thought: `<think>`, `</thinking>`, `<seed:think>`, `[THINK]`, `◁/think▷`,
#: `<|begin_of_thought|>`, and gpt-oss's channels.
_THOUGHT = re.compile(
    r"<(/?)(?:\w+:)?(?:think(?:ing)?|thought|reasoning)>|\[(/?)THINK\]|◁(/?)think▷"
    r"|<\|(?:begin|(end))_of_thought\|>|<\|channel\|>(?:analysis|commentary|(final))(?:[^<]*<\|message\|>)?"
)
#: The marker of a box, an escaped character, or a brace. Models over-escape: any number of backslashes may come before
#: "boxed". The marker is looked for at the start of such a run alone, so that a megabyte of backslashes is read once.
_PIECE = re.compile(
    r"(?<!\\)\\+(?P<marker>(?:[Bb]oxed|fbox|framebox)(?![A-Za-z])\s*(?P<brace>\{)?)|\\.|[{}]", re.DOTALL
)
#: What a box without braces holds: a group in brackets, or the text up to a blank or the end of the sentence.
_BARE = re.compile(
    r"\$?\s*(?P<content>\([^()\n]*\)|\[[^\[\]\n]*\]|\\\{[^{}\n]*\\\}"
    r"|(?=[-+\u2212\w.\\√])(?![A-Za-z]{2}|[A-Za-z]\s+[a-z])"
    r"(?:\{(?:[^{}\n]|\{[^{}\n]*\})*\}|\\(?!(?:[Bb]oxed|fbox|framebox))[A-Za-z]+|\\[%$]|[^\s{}$.,;:!?*\\]|[.,](?=\d)){1,99})"
)
#: Between boxes: layout and names of values, which do not count, and the words that join boxes into one answer.
_SILENT = re.compile(r"[$}*]|\\[()\[\],;:! ]|\\q?quad(?![A-Za-z])|\\(?:text|mbox|textbf)\s*\{|[A-Za-z](?:_\{?\w)?\s*=")
_JOINED = re.compile(r"(?:\s|[,;&]|\b(?:and|also)\b)*|[\s.]*and\b\s*", re.IGNORECASE)
#: Words between boxes that retract the first one: the answer is neither.
_HEDGE = re.compile(
    r"^[^.:!?\n]*(?:\b(?:or|maybe|perhaps|possibly|lor|vee)\b|/)[^.:!\n]*$|^[\s.]*or\b[^.:!]*$", re.IGNORECASE
)
_JOINT_CHARS = 60


class Verdict(enum.StrEnum):
    """Why a response is rewarded or not."""

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


@dataclass(frozen=True)
class _Box:
    start: int
    end: int
    content: str


def final_answer(response: str, *, thinking: bool) -> str | None:
    """The answer after a response's thoughts; None where a thought never ends or there is no box.

    Args:
        response: the sampled text.
        thinking: whether the prompt opened a thought, so that the response starts inside one.
    """
    last = _last_mark(response)
    if last is None:
        return None if thinking else last_boxed(response)
    return last_boxed(response[last.end() :]) if any(last.groups()) else None


def opens_thought(prompt: str) -> bool:
    """Whether a rendered prompt ends in an opened thought; tags in the question do not count."""
    last = _last_mark(prompt)
    return last is not None and not any(last.groups()) and not prompt[last.end() :].strip()


def _last_mark(text: str) -> re.Match[str] | None:
    marks = list(_THOUGHT.finditer(text))
    return marks[-1] if marks else None


def last_boxed(text: str) -> str | None:
    r"""Content of the last box, ``\boxed{...}``, ``\fbox{...}`` or ``\boxed 7``; None where there is none.

    Braces nest, and an escaped brace (``\{``) does not count. A box that holds only another box has its content; with
    anything beside it, the inner box is part of the outer answer. Boxes joined by commas, "and" or "or" are one answer.
    Where the last box never closes, the response was cut off: the box before it counts if it begins with the same text.
    One pass, linear in the length of the text.
    """
    boxes, unfinished = _boxes(text)
    if not boxes:
        return None
    if unfinished > boxes[-1].start:
        so_far = "".join(text[text.index("{", unfinished) + 1 :].split())
        return boxes[-1].content if "".join(boxes[-1].content.split()).startswith(so_far) else None
    joined, either = [boxes[-1]], False
    for box in reversed(boxes[:-1]):
        if joined[-1].start - box.end > _JOINT_CHARS:
            break
        between = _SILENT.sub(" ", text[box.end : joined[-1].start])
        hedge = _HEDGE.search(between) is not None
        if not hedge and (not between.strip() or _JOINED.fullmatch(between) is None):
            break
        joined.append(box)
        either = either or hedge
    contents = [box.content for box in reversed(joined)]
    same = len(set(contents)) == 1 or not contents[-1]
    return contents[-1] if same else (r" \text{ or } " if either else ", ").join(contents)


def _boxes(text: str) -> tuple[list[_Box], int]:
    """The outermost complete boxes, in order, and where the last box that never closes begins; -1 for none."""
    #: Of an open box its start, that of its content and the number of boxes before it; None for a plain brace.
    open_braces: list[tuple[int, int, int] | None] = []
    boxes: list[_Box] = []
    for piece in _PIECE.finditer(text):
        if piece["brace"] is not None:
            open_braces.append((piece.start(), piece.end(), len(boxes)))
        elif piece["marker"] is not None:
            bare = _BARE.match(text, piece.end())
            if bare is not None:
                boxes.append(_Box(piece.start(), bare.end(), bare["content"]))
        elif piece[0] == "{":
            open_braces.append(None)
        elif piece[0] == "}" and open_braces and (opened := open_braces.pop()) is not None:
            start, inside, earlier = opened
            inner = boxes[earlier:]
            del boxes[earlier:]
            if piece.start() - inside <= MAX_ANSWER_CHARS:
                content = text[inside : piece.start()].strip()
                alone = bool(inner) and content == text[inner[0].start : inner[0].end]
                boxes.append(_Box(start, piece.end(), inner[0].content if alone else content))
    return boxes, max((opened[0] for opened in open_braces if opened is not None), default=-1)


def reference_answer(answer: str) -> str:
    """The reference answer without its box, if it has one."""
    boxed = last_boxed(answer)
    return answer if boxed is None else boxed
