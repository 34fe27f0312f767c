"""The outcome of checking one response, and the reward it earns."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """Why a response is or is not rewarded."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class Checked:
    """A verdict with the answer text that was judged; None when the response has none."""

    verdict: Verdict
    extracted: str | None

    @property
    def reward(self) -> float:
        """R^task: 1 for a correct answer, 0 for everything else."""
        return 1.0 if self.verdict is Verdict.CORRECT else 0.0
