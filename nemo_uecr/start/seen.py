"""What a check answers: one line of what it saw, a caution, or nothing where there is nothing to look at.

A check that finds what would stop a run raises a `UecrError`, whose message says what to do; `Refusal` keeps the two
apart for the doctor.
"""

from __future__ import annotations

from dataclasses import dataclass

from nemo_uecr.errors import UecrError


@dataclass(frozen=True)
class Caution:
    """What may spoil a run and does not stop it."""

    message: str
    remedy: str  # what to do; empty where the message contains it


class Refusal(UecrError):
    """What stops a run, with the remedy beside it."""

    def __init__(self, message: str, remedy: str) -> None:
        """The error's own text is both."""
        super().__init__(f"{message}; {remedy}")
        self.message, self.remedy = message, remedy


Seen = str | Caution | None


def required(good: bool, message: str, remedy: str) -> str:
    """The message where all is good; else refused with the remedy."""
    if not good:
        raise Refusal(message, remedy)
    return message


def advised(good: bool, message: str, remedy: str) -> str | Caution:
    """The message where all is good; else a caution with the remedy."""
    return message if good else Caution(message, remedy)
