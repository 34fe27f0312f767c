"""How a command ends: its exit code, and an error in one line."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

from nemo_uecr.errors import UecrError
from nemo_uecr.stopping import STOPPED, RunStopped

USER_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def reported(command: Callable[[], object]) -> int:
    """The exit code of a command, whose errors are reported in one line each."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("nemo_uecr").setLevel(logging.INFO)
    try:
        code = command()
    except UecrError as error:
        return refused(str(error))
    except RunStopped as stopped:
        sys.stderr.write(f"nemo-uecr: {stopped}\n")
        return STOPPED
    except KeyboardInterrupt:
        sys.stderr.write("nemo-uecr: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has closed it (`| head`). Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.strerror is None:  # raised by a library, not by the operating system
            raise
        where = f"{error.filename}: " if error.filename else ""
        return refused(f"{where}{error.strerror}; make room or name another path, and run the command again")
    return code if isinstance(code, int) else 0


def refused(message: str) -> int:
    """Print what was wrong; the exit code of a user's error."""
    sys.stderr.write(f"nemo-uecr: error: {message}\n")
    return USER_ERROR
