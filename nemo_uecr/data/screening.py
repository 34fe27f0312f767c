"""Screens a text against benchmark problems: exact match, n-gram overlap, rare shared words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nemo_uecr.data.benchmarks import LoadedBenchmark
from nemo_uecr.data.ngrams import LEAST_WORDS, Match, NgramIndex, Target, WordIndex
from nemo_uecr.data.normalise import exact_key, normalised, tight_key, words


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
