"""Rewritings on which no threshold of the screening was chosen: its recall is measured on these."""

from __future__ import annotations

import random
import re

from nemo_uecr.data.planting import SENTENCE, Rewrites, in_prose, swapped

_SWAPS = {
    "find": "evaluate", "determine": "identify", "compute": "obtain", "what is": "state", "what": "which",
    "how many": "count the", "how much": "what amount", "if": "assuming", "then": "in that case",
    "such that": "for which",
    "each": "any single", "every": "any", "all": "any and all", "there are": "we see", "there is": "we see",
    "total": "sum", "altogether": "in sum", "more than": "above", "less than": "below", "greater than": "above",
    "positive": "greater than zero", "integer": "whole number", "integers": "numbers without a fractional part",
    "buys": "purchases", "gets": "obtains", "has": "owns", "have": "own", "gives": "hands", "makes": "produces",
    "sells": "trades", "takes": "grabs", "spends": "pays", "costs": "is priced at", "needs": "requires",
    "wants": "wishes",
    "also": "too", "but": "yet", "only": "merely", "left": "remaining", "day": "date", "week": "span of seven days",
    "equation": "relation", "value": "result", "expression": "term", "simplify": "reduce", "express": "write down",
    "answer": "solution", "your": "the", "line": "straight line", "circle": "round curve", "area": "surface",
    "probability": "likelihood", "chosen": "picked", "consists": "is made up", "contains": "holds", "function": "map",
    "point": "spot", "triangle": "three-sided figure", "square": "regular quadrilateral", "in terms of": "by means of",
    "satisfies": "obeys", "satisfying": "obeying", "denote": "be written for", "is equal to": "equals", "where": "with",
}  # fmt: skip
_FORMULA = re.compile(r"\$[^$]*\$")
_VARIABLE = re.compile(r"(?<![A-Za-z\\{])([a-z])(?![A-Za-z}])")
_CAPITAL = re.compile(r"\b[A-Z][a-z]{2,}\b")
_OPENINGS = frozenset(
    """the let how what find if each every for there suppose given two three which when then she they his her
    you all and compute determine consider one that this these with some assume express simplify evaluate define but
    after point points calculate solve today yesterday your please from four five write are not only its""".split()  # noqa: SIM905 - a word list
)
_UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_SMALL = re.compile(r"(?<![\d.,$^_{\\])\b(\d|1[0-2])\b(?![\d.,]*\d|[}$%])")
_NAMES = ("Orla", "Bertil", "Chidi", "Mireille", "Tomasz", "Ingrid", "Paolo", "Svetlana")


def reworded(text: str, rng: random.Random) -> str:
    """Other synonyms in the prose, a filler at the front, the closing question first."""
    changed = in_prose(text, lambda part: swapped(part, _SWAPS))
    sentences = SENTENCE.split(changed)
    rng.shuffle(fillers := ["Here is a small riddle:", "Please think about this.", "Consider what follows."])
    return " ".join([fillers[0], sentences[-1], *sentences[:-1]])


def renamed(text: str, rng: random.Random) -> str:
    """Other names of persons and places, and every variable by another letter."""
    letters = list("abcdefghklmnpqrstuvwxyz")
    rng.shuffle(other := list(letters))
    table = dict(zip(letters, other, strict=True))
    named: dict[str, str] = {}

    def name(word: re.Match[str]) -> str:
        known = word[0].lower() in _OPENINGS
        return word[0] if known else named.setdefault(word[0], _NAMES[len(named) % len(_NAMES)])

    text = in_prose(text, lambda part: _CAPITAL.sub(name, part))
    return _FORMULA.sub(lambda part: _VARIABLE.sub(lambda letter: table.get(letter[1], letter[1]), part[0]), text)


def spelled(text: str, _: random.Random) -> str:
    """Small numbers of the prose as words."""
    return in_prose(text, lambda part: _SMALL.sub(lambda number: _UNITS[int(number[1])], part))


def mistyped(text: str, rng: random.Random) -> str:
    """Two neighbouring letters exchanged in every sixth word of the prose."""

    def slip(word: re.Match[str]) -> str:
        if rng.randrange(6):
            return word[0]
        place = rng.randrange(len(word[0]) - 1)
        return word[0][:place] + word[0][place + 1] + word[0][place] + word[0][place + 2 :]

    return in_prose(text, lambda part: re.sub(r"[A-Za-z]{4,}", slip, part))


def case_by_letter(text: str, rng: random.Random) -> str:
    """Every letter of the prose in a random case."""
    return in_prose(text, lambda part: "".join(rng.choice([sign.lower(), sign.upper()]) for sign in part))


def odd_spaces(text: str, rng: random.Random) -> str:
    """Thin, zero-width and missing blanks."""
    return re.sub(r"\s+", lambda _: rng.choice(["\u2009", "\u200b ", " \u2060", "\n\n", "\u3000"]), text).replace(
        ". ", "."
    )


def cut_middle(text: str, _: random.Random) -> str:
    """The middle half of the words."""
    parts = text.split()
    return " ".join(parts[len(parts) // 4 : len(parts) - len(parts) // 4])


def cut_to_two_fifths(text: str, _: random.Random) -> str:
    """The first 40% of the words."""
    parts = text.split()
    return " ".join(parts[: max(1, round(len(parts) * 0.4))])


HELD_OUT: Rewrites = {
    "case by letter": case_by_letter,
    "odd spaces": odd_spaces,
    "mistyped": mistyped,
    "numbers spelled out": spelled,
    "cut, middle half": cut_middle,
    "cut, first 40%": cut_to_two_fifths,
    "other names and variables": renamed,
    "reworded otherwise": reworded,
}
