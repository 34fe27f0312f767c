"""Rewritten benchmark problems, to measure what the screening catches."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

Rewrites = Mapping[str, Callable[[str, random.Random], str]]

_SWAPS = {
    "find": "determine", "determine": "work out", "compute": "calculate", "what is": "give", "number": "count",
    "positive": "strictly positive", "how many": "give the number of", "such that": "with the property that",
    "suppose": "assume", "let": "take", "each": "every", "every": "each", "begins": "starts", "there are": "one has",
    "denote": "stand for", "satisfying": "that fulfil", "satisfy": "fulfil", "the sum of": "the total of",
    "can be written": "is expressible", "where": "in which", "exactly": "precisely", "distinct": "different",
    "points": "locations", "walks": "strolls", "value": "amount", "given": "supplied", "equal to": "the same as",
    "the probability": "the chance", "consider": "look at", "has": "possesses", "total": "overall", "all": "the whole",
    "integers": "whole numbers", "side length": "edge length", "and": "as well as", "is the": "is our",
}  # fmt: skip
SENTENCE = re.compile(r"(?<=[.?!])\s+")
#: Words between blanks and formulas; only these are touched by re-casing, so that formulas keep their meaning.
_PROSE = re.compile(r"\$[^$]*\$|[^$]+")


def recased(text: str, rng: random.Random) -> str:
    """Upper or title case outside formulas."""
    return in_prose(text, rng.choice([str.upper, str.title, str.swapcase]))


def respaced(text: str, rng: random.Random) -> str:
    """Other blanks: doubled, line breaks, blanks inside formulas and around punctuation, a few inside words."""
    spaced = re.sub(r"\s+", lambda _: rng.choice([" ", "  ", "\n", "\t", "\u00a0"]), text)
    spaced = re.sub(r"([=+,.?$])", lambda part: rng.choice([part[0], f" {part[0]} "]), spaced)
    places = [match.start() for match in re.finditer(r"(?<=[a-z])(?=[a-z])", spaced)]
    for place in sorted(rng.sample(places, k=min(3, len(places))), reverse=True):
        spaced = f"{spaced[:place]} {spaced[place:]}" if not _in_command(spaced, place) else spaced
    return spaced


def relatexed(text: str, rng: random.Random) -> str:
    """Other LaTeX for the same: delimiters, fractions, layout commands."""
    for old, new in ((r"\frac", r"\dfrac"), ("$", r" \( " if rng.random() < 0.5 else "$ "), (r"\cdot", r"\times")):
        text = text.replace(old, new)
    return text.replace("(", r"\left(").replace(")", r"\right)") if "\\(" not in text else text


def cut_front(text: str, _: random.Random) -> str:
    """The first 60% of the words."""
    parts = text.split()
    return " ".join(parts[: max(1, round(len(parts) * 0.6))])


def cut_back(text: str, _: random.Random) -> str:
    """The last 60% of the words."""
    parts = text.split()
    return " ".join(parts[-max(1, round(len(parts) * 0.6)) :])


def embedded(text: str, rng: random.Random) -> str:
    """Inside a longer text."""
    before = rng.choice(["Here is a competition problem for you.", "The following was asked in a contest last year."])
    return f"{before} {text} Explain every step of your reasoning and give the final result in a box."


def reworded(text: str, rng: random.Random) -> str:
    """Synonyms everywhere and the first sentences in another order; numbers and formulas stay."""
    sentences = SENTENCE.split(swapped(text, _SWAPS))
    if len(sentences) > 2:
        opening = sentences[:-1]
        rng.shuffle(opening)
        sentences = [*opening, sentences[-1]]
    return " ".join(sentences)


def swapped(text: str, words: Mapping[str, str]) -> str:
    """Every one of the words by its other, the longest first, in whatever case it stands."""
    found = "|".join(sorted(map(re.escape, words), key=len, reverse=True))
    return re.sub(rf"\b({found})\b", lambda part: words[part[0].lower()], text, flags=re.IGNORECASE)


def in_prose(text: str, change: Callable[[str], str]) -> str:
    """The text with its words changed and its formulas left whole."""
    return _PROSE.sub(lambda part: part[0] if part[0].startswith("$") else change(part[0]), text)


def _in_command(text: str, place: int) -> bool:
    start = re.search(r"\\[a-zA-Z]*$", text[:place])
    return start is not None


#: The thresholds of the screening were chosen on these.
REWRITES: Rewrites = {
    "as it is": lambda text, _: text,
    "re-cased": recased,
    "re-spaced": respaced,
    "other LaTeX": relatexed,
    "cut, first 60%": cut_front,
    "cut, last 60%": cut_back,
    "inside a longer text": embedded,
    "reworded": reworded,
}
