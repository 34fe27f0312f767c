"""One line for a folder that cannot be written: a full disk reaches us as a different error from each library."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nemo_uecr.errors import CheckpointError, first_line

__all__ = ["unwritable", "writing"]

GIGABYTE = 10**9


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Around a library's call that writes into a folder.

    Raises:
        CheckpointError: it cannot; the message names folder, reason and free space.
    """
    from safetensors import SafetensorError
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:  # of torch: no Exception, with what each rank met
        raise unwritable(folder, next(iter(error.failures.values()))[0]) from error
    except (OSError, SafetensorError, RuntimeError) as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: BaseException) -> CheckpointError:
    """The error to raise.

    Args:
        folder: where something was to be written.
        error: what was met.
    """
    shown = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    return CheckpointError(
        f"{place}: cannot be written ({shown:.200}); {free / GIGABYTE:.3g} GB are free there. Make room, or choose "
        "another --to; what this attempt wrote is removed"
    )
