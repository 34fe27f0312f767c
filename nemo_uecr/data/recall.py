"""Measures the screening on rewritten problems, which it must find, and on other problems, which it must not.

Shape legend: B texts, Q benchmark problems, H hidden.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nemo_uecr.data.benchmarks import LoadedBenchmark
from nemo_uecr.data.embedding import Encoder
from nemo_uecr.data.normalise import exact_key, normalised, tight_key
from nemo_uecr.data.planting import Rewrites
from nemo_uecr.data.screening import RULES, Finding, Screen, targets_of

SEED = 0
Near = Callable[[Sequence[str]], list[bool]]


@dataclass(frozen=True)
class Counts:
    """What the screening makes of some texts.

    Attributes:
        texts: how many there are.
        removed: removed outright.
        held: held for a person by exact match, n-grams or rare words.
        near: with a cosine at which the embedding stage holds, the others' findings included; None without a model.
        found: removed, held or near.
    """

    texts: int
    removed: int
    held: int
    near: int | None
    found: int


@dataclass(frozen=True)
class Nearness:
    """The embedding stage's question: is the nearest benchmark problem at least so near?"""

    encoder: Encoder
    hold_at: float

    def to(self, targets: Sequence[str]) -> Near:
        """The question about these targets: one answer a text."""
        vectors_QH = self.encoder.encode(targets)

        def near(texts: Sequence[str]) -> list[bool]:
            cosine_BQ = self.encoder.encode(texts) @ vectors_QH.T
            return [bool(each) for each in (cosine_BQ.max(dim=1).values >= self.hold_at).tolist()]

        return near


def planted_recall(
    benchmarks: Sequence[LoadedBenchmark], rewrites: Rewrites, nearness: Nearness | None
) -> dict[str, Counts]:
    """What the screening finds among the rewritten problems of the benchmarks, by rewriting."""
    questions = _questions(benchmarks)
    screen, near = Screen(targets_of(benchmarks), RULES), None if nearness is None else nearness.to(questions)
    measured = {}
    for name, rewrite in rewrites.items():
        rng = random.Random(SEED)
        measured[name] = _counts(screen, [rewrite(question, rng) for question in questions], near)
    return measured


def false_findings(
    benchmarks: Sequence[LoadedBenchmark], clean: Sequence[LoadedBenchmark], nearness: Nearness | None
) -> dict[str, Counts]:
    """What the screening finds among the problems of other files, by file."""
    screen = Screen(targets_of(benchmarks), RULES)
    near = None if nearness is None else nearness.to(_questions(benchmarks))
    return {each.name: _counts(screen, _questions([each]), near) for each in clean}


def _questions(benchmarks: Sequence[LoadedBenchmark]) -> list[str]:
    return [problem.question for each in benchmarks for problem in each.problems]


def _counts(screen: Screen, texts: Sequence[str], near: Near | None) -> Counts:
    findings = [_find(screen, text) for text in texts]
    certain = [finding.certain for finding in findings if finding is not None]
    close = [False] * len(texts) if near is None else near(texts)
    return Counts(
        texts=len(texts),
        removed=sum(certain),
        held=len(certain) - sum(certain),
        near=None if near is None else sum(close),
        found=sum(finding is not None or each for finding, each in zip(findings, close, strict=True)),
    )


def _find(screen: Screen, text: str) -> Finding | None:
    plain = normalised(text)
    return screen.find(plain, exact_key(plain), tight_key(text))
