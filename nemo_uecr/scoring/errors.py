"""Errors of the scoring layer: each names the token and says what was got and what was expected."""

from __future__ import annotations

from nemo_uecr.errors import ScoreError


class ScoringInputError(ScoreError):
    """An argument of a scoring call has the wrong shape, dtype or value, or is empty."""


class TargetOutOfVocabularyError(ScoreError):
    """A target token id lies outside the scored vocabulary."""


class NonFiniteScoreError(ScoreError):
    """The logits of a token that was asked for are not finite."""


class ShardMismatchError(ScoreError):
    """The ranks of a vocabulary-parallel group disagree about the call, or one of them refused it."""
