"""Screens a text against benchmark problems: exact match, n-gram overlap, rare shared words.

Texts are compared in one normalised reading, in which case, spacing, typography and LaTeX spelling do not count.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nemo_uecr.data.benchmarks import LoadedBenchmark

#: Part of every manifest: another reading finds other duplicates.
NORMALISATION = "2"

#: Typographic signs by code point: minus and dashes, multiplication signs, relations.
_SIGNS = {
    **dict.fromkeys((0x2212, 0x2010, 0x2011, 0x2012, 0x2013, 0x2014), "-"),
    **dict.fromkeys((0x00D7, 0x00B7, 0x22C5), "*"),
    0x2264: " <= ",
    0x2265: " >= ",
    0x2260: " != ",
}
_SPELLINGS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "cdot": "*", "times": "*", "le": "<=", "leq": "<=",
    "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "ne": "!=", "neq": "!=", "ldots": "", "dots": "",
    "cdots": "", "left": "", "right": "", "big": "", "bigl": "", "bigr": "", "displaystyle": "", "text": "",
    "textbf": "", "textit": "", "emph": "", "mathrm": "", "mathbf": "", "mathit": "", "operatorname": "", "mbox": "",
    "quad": "", "qquad": "", "limits": "", "nolimits": "", "circ": "deg", "degree": "deg", "varnothing": "emptyset",
}  # fmt: skip
#: Cyrillic and Greek lower-case letters that look like Latin ones, by code point.
_LOOK_ALIKES = {
    0x0430: "a", 0x0435: "e", 0x043E: "o", 0x0440: "p", 0x0441: "c", 0x0445: "x", 0x0443: "y", 0x0456: "i", 0x0458: "j",
    0x0455: "s", 0x04BB: "h", 0x0501: "d", 0x051B: "q", 0x051D: "w", 0x043A: "k", 0x043C: "m", 0x0442: "t", 0x043D: "h",
    0x0432: "b", 0x03BF: "o", 0x03BD: "v", 0x03BA: "k", 0x03C1: "p", 0x03C5: "u", 0x03B9: "i", 0x03F2: "c",
}  # fmt: skip
_COMMAND = re.compile(r"\\([a-z]+)\*?")
_ESCAPED = re.compile(r"\\[^a-z]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_NOISE = re.compile(r"[^\w+\-*/=<>!^]|_")


def normalised(text: str) -> str:
    """The text in lower case with LaTeX spellings unified and layout commands gone."""
    plain = _letters(text)
    if "\\" in plain:
        plain = _COMMAND.sub(_spelling, plain)
        plain = _ESCAPED.sub(" ", plain)
    return _THOUSANDS.sub("", plain.replace("{,}", ","))


def words(plain: str) -> list[str]:
    """Words and numbers of a normalised text, in order; signs and layout are left out."""
    return _WORD.findall(plain)


def exact_key(plain: str) -> str:
    """Letters, digits and operators of a normalised text, without any space: equal keys are the same problem."""
    return _NOISE.sub("", plain)


def tight_key(text: str) -> str:
    r"""Letters and digits of the text as it stands, commands included: blanks inside words or commands do not count."""
    return "".join(sign for sign in _letters(text) if sign.isalnum())


def _letters(text: str) -> str:
    """Lower case, without accents and invisible characters, look-alike letters as the Latin ones."""
    if text.isascii():
        return text.casefold()
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    kept = "".join(sign for sign in apart if unicodedata.category(sign) not in ("Mn", "Cf"))
    return kept.translate(_SIGNS).translate(_LOOK_ALIKES)


def _spelling(match: re.Match[str]) -> str:
    name = match[1]
    return f" {_SPELLINGS.get(name, name)} "


#: Words a row needs before a benchmark's word sequence inside it, or it inside a benchmark, means anything.
LEAST_WORDS = 5


@dataclass(frozen=True)
class Target:
    """One benchmark problem as the screening sees it."""

    benchmark: str
    problem: str
    key: str
    words: tuple[str, ...]
    tight: str


@dataclass(frozen=True)
class Match:
    """The nearest benchmark problem by one measure, with its score in [0, 1]."""

    target: int
    score: float


class NgramIndex:
    """Word n-grams of the benchmarks.

    containment(row, target) = |shared n-grams| / min(|n-grams of the row|, |n-grams of the target|)

    The smaller of the two counts, so that a problem cut short, or one inside a longer text, still scores near 1.
    """

    def __init__(self, targets: Sequence[Target], *, order: int) -> None:
        self._order = order
        self._owners: dict[str, list[int]] = {}
        self._sizes = []
        for index, target in enumerate(targets):
            grams = set(_grams(target.words, order))
            self._sizes.append(len(grams))
            for gram in grams:
                self._owners.setdefault(gram, []).append(index)
        self._texts = [f" {' '.join(target.words)} " for target in targets]

    def nearest(self, words: Sequence[str]) -> Match | None:
        """The target with the highest containment; None when no n-gram is shared."""
        if len(words) < self._order:
            return self._inside(words)
        grams = set(_grams(words, self._order))
        shared: Counter[int] = Counter()
        for gram in grams & self._owners.keys():
            shared.update(self._owners[gram])
        scores = [Match(index, count / min(len(grams), self._sizes[index])) for index, count in shared.items()]
        return max(scores, key=lambda match: (match.score, -match.target), default=None)

    def _inside(self, words: Sequence[str]) -> Match | None:
        """A row too short for an n-gram: is it a piece of a target?"""
        if len(words) < LEAST_WORDS:
            return None
        piece = f" {' '.join(words)} "
        return next((Match(index, 1.0) for index, text in enumerate(self._texts) if piece in text), None)


class WordIndex:
    """Rare shared words and numbers, for a problem told in other words.

    cosine(row, target) = Σ_{w in both} idf(w)² / (|row| · |target|),   |x|² = Σ_{w in x} idf(w)²

    idf(w) = ln((1 + n) / (1 + targets with w)), and ``UNSEEN``·ln(1 + n) for a word that no target has: the row's own
    story counts against a match, but less than a shared rare word counts for it.
    """

    UNSEEN = 0.6

    def __init__(self, targets: Sequence[Target]) -> None:
        documents = [set(target.words) for target in targets]
        counts = Counter(word for document in documents for word in document)
        size = len(documents)
        self._unseen = (self.UNSEEN * math.log(1 + size)) ** 2
        self._weights = {word: math.log((1 + size) / (1 + count)) ** 2 for word, count in counts.items()}
        # A word of more than a fifth of the problems finds nothing and costs the most.
        common = max(3, size // 5)
        self._owners: dict[str, list[int]] = {}
        for index, document in enumerate(documents):
            for word in document:
                if counts[word] <= common:
                    self._owners.setdefault(word, []).append(index)
        self._norms = [math.sqrt(self._norm(document)) or 1.0 for document in documents]

    def nearest(self, words: Sequence[str]) -> Match | None:
        """The target with the highest cosine; None when no rare word is shared."""
        document = set(words)
        scores: dict[int, float] = {}
        for word in document & self._owners.keys():
            weight = self._weights[word]
            for index in self._owners[word]:
                scores[index] = scores.get(index, 0.0) + weight
        if not scores:
            return None
        norm = math.sqrt(self._norm(document))
        best = max(scores, key=lambda index: (scores[index] / self._norms[index], -index))
        return Match(best, min(1.0, scores[best] / (norm * self._norms[best])))

    def _norm(self, document: Iterable[str]) -> float:
        return sum(self._weights.get(word, self._unseen) for word in document)


def _grams(words: Sequence[str], order: int) -> list[str]:
    if len(words) < order:
        return [" ".join(words)] if words else []
    return [" ".join(words[start : start + order]) for start in range(len(words) - order + 1)]


@dataclass(frozen=True)
class ScreenRules:
    """The thresholds of the screening; they stand in the manifest.

    Attributes:
        order: words of an n-gram.
        remove_ngrams: containment from which a row is removed.
        hold_ngrams: containment from which a row waits for a person.
        hold_words: cosine of the rare words from which a row waits for a person.
    """

    order: int
    remove_ngrams: float
    hold_ngrams: float
    hold_words: float


#: Chosen on rewritten problems of AIME24 and AMC23 against MATH500 and GSM8K; docs/data.md has the measurement.
RULES = ScreenRules(order=8, remove_ngrams=0.5, hold_ngrams=0.2, hold_words=0.45)

#: Letters and digits a text needs to be compared by nothing but them.
LEAST_TIGHT = 30


@dataclass(frozen=True)
class Finding:
    """A row that is, or may be, a benchmark problem.

    Attributes:
        method: exact, ngram or words.
        score: the measure of that method, 1 for exact.
        certain: whether the row is removed; otherwise a person decides.
        target: the benchmark problem.
    """

    method: str
    score: float
    certain: bool
    target: Target

    def record(self) -> dict[str, object]:
        """As it stands in the held and removed rows."""
        target = self.target
        return {"method": self.method, "score": self.score, "benchmark": target.benchmark, "problem": target.problem}


class Screen:
    """All screened benchmarks with their indices."""

    def __init__(self, targets: Iterable[Target], rules: ScreenRules) -> None:
        self.targets = tuple(targets)
        self._rules = rules
        self._keys = {target.key: index for index, target in reversed(list(enumerate(self.targets)))}
        # Signs do not count in this key, so that a short formula could be another problem's.
        long = [(index, target) for index, target in enumerate(self.targets) if len(target.tight) >= LEAST_TIGHT]
        self._tight = {target.tight: index for index, target in reversed(long)}
        self._ngrams = NgramIndex(self.targets, order=rules.order)
        self._words = WordIndex(self.targets)

    def find(self, plain: str, key: str, tight: str) -> Finding | None:
        """The strongest finding on a normalised text; None for a clean one.

        Args:
            plain: `normalised` text.
            key: its `exact_key`.
            tight: the text's `tight_key`.
        """
        if not self.targets:
            return None
        rules = self._rules
        index = self._keys.get(key, self._tight.get(tight))
        if index is not None:
            return Finding("exact", 1.0, True, self.targets[index])
        listed = words(plain)
        ngrams = self._ngrams.nearest(listed)
        if ngrams is not None and ngrams.score >= rules.hold_ngrams:
            # A fragment shorter than one n-gram is too little to remove a row for without a look.
            return self._finding("ngram", ngrams, ngrams.score >= rules.remove_ngrams and len(listed) >= rules.order)
        rare = self._words.nearest(listed) if len(listed) >= LEAST_WORDS else None
        if rare is not None and rare.score >= rules.hold_words:
            return self._finding("words", rare, False)
        return None

    def _finding(self, method: str, match: Match, certain: bool) -> Finding:
        return Finding(method, round(match.score, 4), certain, self.targets[match.target])


def targets_of(benchmarks: Iterable[LoadedBenchmark]) -> list[Target]:
    """The benchmarks' problems as screening targets."""
    return [
        Target(benchmark.name, problem.id, exact_key(plain), tuple(words(plain)), tight_key(problem.question))
        for benchmark in benchmarks
        for problem in benchmark.problems
        for plain in [normalised(problem.question)]
    ]
