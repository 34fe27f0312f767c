"""The errors a user can meet. Each message is one line: what was got, what was expected, what to do.

The command line prints the message of a `UecrError` on standard error and exits with code 2.
"""

from __future__ import annotations


class UecrError(Exception):
    """Base of every error that is the input's or the environment's fault rather than a defect here."""


class ConfigError(UecrError, ValueError):
    """A configuration key or value cannot be used."""


class DataError(UecrError, ValueError):
    """A problem file, a model folder or a saved batch cannot be used."""


class ScoreError(UecrError, ValueError):
    """A score (log-probability, entropy) is missing, misshapen or not finite."""


class InvariantError(UecrError, RuntimeError):
    """An identity that the method declares does not hold within its tolerance."""


class CheckpointError(UecrError, RuntimeError):
    """A checkpoint is missing, incomplete, corrupt or belongs to another configuration."""


class RunFolderError(UecrError, RuntimeError):
    """The output folder is in use, holds another run, or cannot be written."""


class DependencyError(UecrError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


def first_line(error: BaseException) -> str:
    """What another library's error says, without the advice that follows; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
