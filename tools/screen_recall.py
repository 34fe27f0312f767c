"""What the screening of training problems finds: of rewritten benchmark problems, and of problems it must leave alone.

    python tools/screen_recall.py BENCHMARK... [--clean FILE...] [--model MODEL]

Thresholds were chosen on the first set of rewritings; the second is held out. Each line counts rows removed and held.
With a sentence model it also counts what `data screen` would hold.

Shape legend: B texts, Q benchmark problems, H hidden.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nemo_uecr.cli.data import HOLD_AT
from nemo_uecr.data.benchmarks import LoadedBenchmark, load_benchmarks
from nemo_uecr.data.embedding import Encoder, load_encoder
from nemo_uecr.data.screening import Screen, Text

Rewrite = Callable[[str, random.Random], str]
Rewrites = Mapping[str, Rewrite]

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


# Held out.

_OTHER_SWAPS = {
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
    after point points calculate solve today yesterday your please from four five write are not only its""".split()
)
_UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_SMALL = re.compile(r"(?<![\d.,$^_{\\])\b(\d|1[0-2])\b(?![\d.,]*\d|[}$%])")
_NAMES = ("Orla", "Bertil", "Chidi", "Mireille", "Tomasz", "Ingrid", "Paolo", "Svetlana")


def reworded_otherwise(text: str, rng: random.Random) -> str:
    """Other synonyms in the prose, a filler at the front, the closing question first."""
    changed = in_prose(text, lambda part: swapped(part, _OTHER_SWAPS))
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
    "reworded otherwise": reworded_otherwise,
}


SEED = 0


@dataclass(frozen=True)
class Counts:
    """What the screening makes of some texts."""

    texts: int
    removed: int
    held: int  # for a person, by exact match, n-grams or rare words
    near: int | None  # held by the embedding stage, the others' findings included; None without a model
    found: int  # removed, held or near


def planted_recall(
    benchmarks: Sequence[LoadedBenchmark], rewrites: Rewrites, encoder: Encoder | None
) -> dict[str, Counts]:
    """What the screening finds among the rewritten problems of the benchmarks, by rewriting."""
    questions, texts = _questions(benchmarks), {}
    for name, rewrite in rewrites.items():
        rng = random.Random(SEED)
        texts[name] = [rewrite(question, rng) for question in questions]
    return _counts(benchmarks, texts, encoder)


def false_findings(
    benchmarks: Sequence[LoadedBenchmark], clean: Sequence[LoadedBenchmark], encoder: Encoder | None
) -> dict[str, Counts]:
    """What the screening finds among the problems of other files, by file."""
    return _counts(benchmarks, {each.name: _questions([each]) for each in clean}, encoder)


def _questions(benchmarks: Sequence[LoadedBenchmark]) -> list[str]:
    return [problem.question for each in benchmarks for problem in each.problems]


def _counts(
    benchmarks: Sequence[LoadedBenchmark], texts_of: Mapping[str, Sequence[str]], encoder: Encoder | None
) -> dict[str, Counts]:
    screen, counts = Screen(benchmarks), {}
    targets_QH = None if encoder is None else encoder.encode(_questions(benchmarks))
    for name, texts in texts_of.items():
        findings = [screen.find(Text.of(text)) for text in texts]
        certain = [finding.certain for finding in findings if finding is not None]
        close, near = [False] * len(texts), None
        if encoder is not None and targets_QH is not None:
            cosine_BQ = encoder.encode(texts) @ targets_QH.T
            close = (cosine_BQ.max(dim=1).values >= HOLD_AT).tolist()
            near = sum(close)
        found = sum(finding is not None or each for finding, each in zip(findings, close, strict=True))
        counts[name] = Counts(len(texts), sum(certain), len(certain) - sum(certain), near, found)
    return counts


def main() -> int:
    """Print the counts of both sets of rewritings and of the clean files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="+", metavar="BENCHMARK", help="file, NAME=FILE or known name")
    parser.add_argument("--clean", nargs="+", default=[], metavar="FILE", help="problems that must not be found")
    parser.add_argument("--model", help="sentence model of `data screen` (default: without that step)")
    args = parser.parse_args()
    benchmarks = list(load_benchmarks(args.benchmarks).values())
    clean = list(load_benchmarks(args.clean).values())
    encoder = None if args.model is None else load_encoder(args.model)
    for title, counts in (
        ("rewritten, thresholds chosen on these", planted_recall(benchmarks, REWRITES, encoder)),
        ("rewritten, held out", planted_recall(benchmarks, HELD_OUT, encoder)),
        ("other problems, which must not be found", false_findings(benchmarks, clean, encoder)),
    ):
        sys.stdout.write(f"{title}: removed + held\n")
        sys.stdout.writelines(_line(name, each) for name, each in counts.items())
    return 0


def _line(name: str, counts: Counts) -> str:
    by_model = "" if counts.near is None else f"; embedding {counts.near:>4}, together {counts.found:>4}"
    return f"  {counts.removed:>4} + {counts.held:>4} of {counts.texts:>4}{by_model}  {name}\n"


if __name__ == "__main__":
    sys.exit(main())
