"""A verifier that errs: the verdict on some responses is flipped, on the same ones in every run."""

from __future__ import annotations

from hashlib import sha256

from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import check_response


def noisy(prompts: list[str], completions: list[str], answer: list[str], share: float) -> list[float]:
    """1 for a correct answer, else 0; the other way round where a hash of problem and response says so."""
    return [
        float((check_response(text, expected).verdict == Verdict.CORRECT) != _flipped(prompt + text, share))
        for prompt, text, expected in zip(prompts, completions, answer, strict=True)
    ]


def _flipped(text: str, share: float) -> bool:
    return int.from_bytes(sha256(text.encode()).digest()[:8]) < share * 2**64
