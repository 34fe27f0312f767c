"""Overlap of a row with the benchmarks: shared word n-grams, and shared rare words where the wording differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Words a row needs before a benchmark's word sequence inside it, or it inside a benchmark, means anything.
LEAST_WORDS = 5


@dataclass(frozen=True)
class Target:
    """One benchmark problem as the screening sees it."""

    benchmark: str
    problem: str
    key: str
    words: tuple[str, ...]
    tight: str = ""  # `tight_key`; empty matches nothing


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
