"""The end of a run before its last step: NeMo-RL's own time limit, and a request that counts as one."""

from __future__ import annotations

import logging
from typing import Any

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.errors import RunFolderError
from nemo_uecr.stopping import RunStopped, StopRequest, seconds_left

log = logging.getLogger(__name__)

#: Seconds before the end of the job by which the checkpoint must have been begun.
SAVING_S = 300


def also_asked(checker: Any, stop: StopRequest) -> Any:
    """NeMo-RL's time keeper, whose time is also over once ``stop`` is asked: the loop then saves and returns."""
    native_check = checker.check_save

    def check_save() -> bool:
        if native_check():
            stop.ask("the time limit")
        return stop.asked

    checker.check_save = check_save
    return checker


def limit_time(native_config: Any) -> None:
    """Let the training loop save and return before the job ends, or before a step that would not fit.

    Args:
        native_config: NeMo-RL's configuration of the run; its clock starts with the loop, that is, now.
    """
    left = seconds_left()
    if left is None:
        return
    minutes, seconds = divmod(max(0, int(left - SAVING_S)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    limit = f"{days:02d}:{hours:02d}:{minutes:02d}:{seconds:02d}"
    log.info("the job ends in %.0f s; the run saves and ends within %s (days:hours:minutes:seconds)", left, limit)
    native_config.checkpointing["checkpoint_must_save_by"] = limit


def report_early_end(stop: StopRequest, config: NemoConfig, *, completed: int) -> None:
    """Raise what an early end amounts to; nothing after the last step.

    Raises:
        RunStopped: a checkpoint was saved.
        RunFolderError: the configuration saves none.
    """
    if not stop.asked or completed >= config.train.steps:
        return
    if config.checkpoint.every == 0:
        raise RunFolderError(
            f"stopped by {stop.reason} with checkpoint.every=0: nothing was saved; set it to at least 1"
        )
    raise RunStopped(
        f"stopped by {stop.reason} after step {completed} of {config.train.steps}; "
        f"{config.run.folder}/checkpoints/step_{completed} is complete. Run again to continue"
    )
