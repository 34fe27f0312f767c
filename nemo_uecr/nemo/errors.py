"""Errors of the NeMo-RL back end."""

from __future__ import annotations

from nemo_uecr.errors import DependencyError, ScoreError, UecrError


class UpstreamError(DependencyError):
    """The installed NeMo-RL is not the one this back end was written for."""


class ContractError(ScoreError):
    """Scores do not belong to the tokens, the temperature or the vocabulary they are about to be used for."""


class BatchFactsError(UecrError, RuntimeError):
    """What was generated, rewarded and trained in a step does not add up."""


class WorkerError(UecrError, RuntimeError):
    """A worker died or did not answer in time; the message names it."""


class GpuMemoryError(UecrError, RuntimeError):
    """A worker holds or finds other memory on its GPU than the next part of the step counts on."""
