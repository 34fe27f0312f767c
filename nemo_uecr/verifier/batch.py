"""Checks many responses at once, on several processes."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_uecr.verifier.equivalence import judge_plain, without_point
from nemo_uecr.verifier.extract import last_boxed
from nemo_uecr.verifier.pool import ComparisonPool
from nemo_uecr.verifier.verdict import Checked, Verdict


def check_responses(responses: Sequence[str], answers: Sequence[str], pool: ComparisonPool) -> list[Checked]:
    """Judge responses against their reference answers, as `check_response` judges one.

    Args:
        responses: sampled texts, without the prompts.
        answers: reference answers, bare or boxed.
        pool: where mathematics is compared; each distinct pair once.

    Returns:
        One verdict a response, in order.
    """
    given = [last_boxed(response) for response in responses]
    expected = [answer if (boxed := last_boxed(answer)) is None else boxed for answer in answers]
    pairs = [(text, reference) for text, reference in zip(given, expected, strict=True) if text]
    known: dict[tuple[str, str], Verdict | None] = {pair: judge_plain(*pair) for pair in pairs}
    hard = [pair for pair, verdict in known.items() if verdict is None]
    compared = pool.compare_all([(without_point(text), without_point(reference)) for text, reference in hard])
    found = known | dict(zip(hard, compared, strict=True))
    return [
        Checked((found[text, reference] or Verdict.ERROR) if text else Verdict.NO_ANSWER, text)
        for text, reference in zip(given, expected, strict=True)
    ]
