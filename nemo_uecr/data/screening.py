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

#: Minus and dashes, multiplication signs, relations.
_SIGNS = str.maketrans("−‐‑‒–—×·⋅", "------***") | str.maketrans({"≤": " <= ", "≥": " >= ", "≠": " != "})  # noqa: RUF001
_SPELLINGS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "cdot": "*", "times": "*", "le": "<=", "leq": "<=",
    "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "ne": "!=", "neq": "!=", "ldots": "", "dots": "",
    "cdots": "", "left": "", "right": "", "big": "", "bigl": "", "bigr": "", "displaystyle": "", "text": "",
    "textbf": "", "textit": "", "emph": "", "mathrm": "", "mathbf": "", "mathit": "", "operatorname": "", "mbox": "",
    "quad": "", "qquad": "", "limits": "", "nolimits": "", "circ": "deg", "degree": "deg", "varnothing": "emptyset",
}  # fmt: skip
#: Cyrillic and Greek lower-case letters that look like Latin ones.
_LOOK_ALIKES = str.maketrans("аеорсхуіјѕһԁԛԝкмтнвονκρυιϲ", "aeopcxyijshdqwkmthbovkpuic")
_COMMAND = re.compile(r"\\([a-z]+)\*?")
_ESCAPED = re.compile(r"\\[^a-z]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_NOISE = re.compile(r"[^\w+\-*/=<>!^]|_")


#: Words a row needs before a benchmark's word sequence inside it, or it inside a benchmark, means anything.
LEAST_WORDS = 5
#: Letters and digits a text needs to be compared by nothing but them.
LEAST_TIGHT = 30
#: Words of an n-gram; containment from which a row is removed, and from which it waits for a person; cosine of the rare
#: words from which it waits. Chosen on rewritten problems of AIME24 and AMC23 against MATH500 and GSM8K: docs/data.md.
RULES = {"order": 8, "remove_ngrams": 0.5, "hold_ngrams": 0.2, "hold_words": 0.45}
#: What a word that no benchmark problem has counts of the idf of an unseen word.
UNSEEN = 0.6


def normalised(text: str) -> str:
    """The text in lower case with LaTeX spellings unified and layout commands gone."""
    plain = _letters(text)
    if "\\" in plain:
        plain = _COMMAND.sub(lambda match: f" {_SPELLINGS.get(match[1], match[1])} ", plain)
        plain = _ESCAPED.sub(" ", plain)
    return _THOUSANDS.sub("", plain.replace("{,}", ","))


def _letters(text: str) -> str:
    """Lower case, without accents and invisible characters, look-alike letters as the Latin ones."""
    if text.isascii():
        return text.casefold()
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    kept = "".join(sign for sign in apart if unicodedata.category(sign) not in ("Mn", "Cf"))
    return kept.translate(_SIGNS).translate(_LOOK_ALIKES)


def question_key(text: str) -> str:
    """Letters, digits and operators of the normalised text, without any space: equal keys are the same problem."""
    return _NOISE.sub("", normalised(text))


@dataclass(frozen=True)
class Text:
    """A text as it is compared."""

    key: str  # as `question_key`
    words: tuple[str, ...]  # words and numbers of the normalised text, in order; signs and layout are left out
    #: Letters and digits of the raw text, commands included: blanks inside words or commands do not count.
    tight: str

    @classmethod
    def of(cls, text: str) -> Text:
        """The three readings of a text."""
        plain = normalised(text)
        return cls(_NOISE.sub("", plain), tuple(_WORD.findall(plain)), "".join(filter(str.isalnum, _letters(text))))


@dataclass(frozen=True)
class BenchmarkMatch:
    """A row that is, or may be, a benchmark problem."""

    method: str  # exact, ngram or words
    score: float  # the measure of that method in [0, 1], 1 for exact
    certain: bool  # whether the row is removed; otherwise a person decides
    benchmark: str
    problem: str


class NgramIndex:
    """Word n-grams of the benchmarks.

    containment(row, target) = |shared n-grams| / min(|n-grams of the row|, |n-grams of the target|)

    The smaller of the two counts, so that a problem cut short, or one inside a longer text, still scores near 1.
    """

    def __init__(self, targets: Sequence[Sequence[str]], *, order: int) -> None:
        self._order = order
        self._owners: dict[str, list[int]] = {}
        self._sizes = []
        for index, target in enumerate(targets):
            grams = set(self._grams(target))
            self._sizes.append(len(grams))
            for gram in grams:
                self._owners.setdefault(gram, []).append(index)
        self._texts = [f" {' '.join(target)} " for target in targets]

    def nearest(self, words: Sequence[str]) -> tuple[float, int] | None:
        """Highest containment and its target; None when no n-gram is shared."""
        if len(words) < self._order:  # is it a piece of a target?
            piece = f" {' '.join(words)} "
            inside = (index for index, text in enumerate(self._texts) if len(words) >= LEAST_WORDS and piece in text)
            return next(((1.0, index) for index in inside), None)
        grams = set(self._grams(words))
        shared = Counter(index for gram in grams & self._owners.keys() for index in self._owners[gram])
        scores = [(count / min(len(grams), self._sizes[index]), -index) for index, count in shared.items()]
        return (max(scores)[0], -max(scores)[1]) if scores else None

    def _grams(self, words: Sequence[str]) -> list[str]:
        last = max(len(words) - self._order, 0)
        return [" ".join(words[start : start + self._order]) for start in range(last + 1)] if words else []


class WordIndex:
    """Rare shared words and numbers, for a reworded problem.

    cosine(row, target) = Σ_{w in both} idf(w)² / (|row| · |target|),   |x|² = Σ_{w in x} idf(w)²

    idf(w) = ln((1 + n) / (1 + targets with w)), and ``UNSEEN``·ln(1 + n) for a word that no target has: the row's own
    story counts against a match, but less than a shared rare word counts for it.
    """

    def __init__(self, targets: Sequence[Sequence[str]]) -> None:
        documents = [set(target) for target in targets]
        counts = Counter(word for document in documents for word in document)
        size = len(documents)
        self._unseen = (UNSEEN * math.log(1 + size)) ** 2
        self._weights = {word: math.log((1 + size) / (1 + count)) ** 2 for word, count in counts.items()}
        # A word of more than a fifth of the problems finds nothing and costs the most.
        common = max(3, size // 5)
        self._owners: dict[str, list[int]] = {}
        for index, document in enumerate(documents):
            for word in document:
                if counts[word] <= common:
                    self._owners.setdefault(word, []).append(index)
        self._norms = [self._norm(document) or 1.0 for document in documents]

    def nearest(self, words: Sequence[str]) -> tuple[float, int] | None:
        """Highest cosine and its target; None when no rare word is shared."""
        document = set(words)
        scores: dict[int, float] = {}
        for word in document & self._owners.keys():
            for index in self._owners[word]:
                scores[index] = scores.get(index, 0.0) + self._weights[word]
        if not scores:
            return None
        best = max(scores, key=lambda index: (scores[index] / self._norms[index], -index))
        return min(1.0, scores[best] / (self._norm(document) * self._norms[best])), best

    def _norm(self, document: Iterable[str]) -> float:
        return math.sqrt(sum(self._weights.get(word, self._unseen) for word in document))


class Screen:
    """All screened benchmarks with their indices."""

    def __init__(self, benchmarks: Iterable[LoadedBenchmark]) -> None:
        """Index the problems; of equal ones the first is found."""
        listed = [(benchmark.name, problem) for benchmark in benchmarks for problem in benchmark.problems]
        self._targets = [(name, problem.id) for name, problem in listed]
        texts = [Text.of(problem.question) for _, problem in listed]
        numbered = list(enumerate(texts))[::-1]
        self._keys = {text.key: index for index, text in numbered}
        # Signs do not count in this key, so that a short formula could be another problem's.
        self._tight = {text.tight: index for index, text in numbered if len(text.tight) >= LEAST_TIGHT}
        words = [text.words for text in texts]
        self._ngrams, self._words = NgramIndex(words, order=int(RULES["order"])), WordIndex(words)

    def find(self, text: Text) -> BenchmarkMatch | None:
        """The strongest finding on a text; None for a clean one."""
        if not self._targets:
            return None
        index = self._keys.get(text.key, self._tight.get(text.tight))
        if index is not None:
            return self._match("exact", (1.0, index), certain=True)
        ngrams = self._ngrams.nearest(text.words)
        if ngrams is not None and ngrams[0] >= RULES["hold_ngrams"]:
            # A fragment shorter than one n-gram is too little to remove a row for without a look.
            certain = ngrams[0] >= RULES["remove_ngrams"] and len(text.words) >= RULES["order"]
            return self._match("ngram", ngrams, certain=certain)
        rare = self._words.nearest(text.words) if len(text.words) >= LEAST_WORDS else None
        if rare is not None and rare[0] >= RULES["hold_words"]:
            return self._match("words", rare, certain=False)
        return None

    def _match(self, method: str, match: tuple[float, int], *, certain: bool) -> BenchmarkMatch:
        return BenchmarkMatch(method, round(match[0], 4), certain, *self._targets[match[1]])
