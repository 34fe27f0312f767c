"""One line for a folder that cannot be written: a full disk reaches us as a different error from each library."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nemo_uecr.errors import CheckpointError, first_line

__all__ = ["unwritable", "writing", "writing_temporary"]

GIGABYTE = 10**9
TEMPORARY = "set TMPDIR to another folder"


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


@contextmanager
def writing_temporary() -> Iterator[None]:
    """Around what writes into the folder of temporary files, which may be full while there is room for OUT.

    Raises:
        CheckpointError: it cannot; the message names that folder, reason and free space.
    """
    try:
        yield
    except OSError as error:
        if tempfile.tempdir is None:  # Python has looked, and tells where
            raise CheckpointError(
                f"{first_line(error)}: none can be written; make room in one of them, or set TMPDIR to another folder"
            ) from error
        raise _refusal(Path(tempfile.tempdir), error, TEMPORARY) from error


def unwritable(folder: Path, error: BaseException) -> CheckpointError:
    """The error to raise.

    Args:
        folder: where something was to be written, unless the error names a temporary file.
        error: what was met.
    """
    named = error.filename if isinstance(error, OSError) else None
    if isinstance(named, str) and tempfile.tempdir is not None:
        path, temporary = Path(named).absolute(), Path(tempfile.tempdir).absolute()
        if path.is_relative_to(temporary) and not path.is_relative_to(folder.absolute()):
            return _refusal(temporary, error, TEMPORARY)
    return _refusal(folder, error, "choose another --to")


def _refusal(folder: Path, error: BaseException, remedy: str) -> CheckpointError:
    shown = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    return CheckpointError(
        f"{place}: cannot be written ({shown:.200}); {free / GIGABYTE:.3g} GB are free there. Make room, or {remedy}; "
        "what this attempt wrote is removed"
    )
