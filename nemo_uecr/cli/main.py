"""The entry point: chooses a command, runs it, and turns a user's error into one line and exit code 2."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from nemo_uecr import __version__
from nemo_uecr.cli.extras import as_dependency_error
from nemo_uecr.cli.table import Command, find_command, is_group, overview
from nemo_uecr.errors import UecrError, first_line
from nemo_uecr.stopping import STOPPED, RunStopped

__all__ = ["dispatch", "entry_point", "parser_of"]

USER_ERROR = 2
#: What a full or protected disk, or a limit on the size of files, says, wherever in a command it says it.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
HELP = ("-h", "--help")


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose error is one line instead of the usage and a line."""

    def error(self, message: str) -> NoReturn:
        """Report a wrong command line."""
        raise UecrError(f"{message}; see {self.prog} --help")


def entry_point(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: what follows `nemo-uecr`; None: those of the process.

    Returns:
        0, or what the command returned; 2 for an error of the user's; 75 where a run was asked to end and has saved;
        130 after Ctrl-C.
    """
    try:
        return dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except UecrError as error:
        return _refuse(error)
    except (ModuleNotFoundError, SyntaxError, NameError, TypeError, AttributeError) as error:
        known = as_dependency_error(error) if isinstance(error, ModuleNotFoundError) else _broken_source(error)
        if known is None:
            raise
        return _refuse(known)
    except RunStopped as stopped:
        sys.stderr.write(f"nemo-uecr: {stopped}\n")
        return STOPPED
    except KeyboardInterrupt:
        sys.stderr.write("nemo-uecr: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`| head`). Python would complain again while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _refuse(UecrError(_os_message(error)))


def _broken_source(error: BaseException) -> UecrError | None:
    """What is wrong with method_registry.py, to which users add lines, or with a file that is no Python."""
    if isinstance(error, SyntaxError):
        return UecrError(f"{error.filename} line {error.lineno}: {error.msg}; expected Python")
    registry = Path(__file__).resolve().parents[1] / "method_registry.py"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.name == "<module>" and frame.filename == str(registry)]
    return (
        UecrError(f"{registry} line {lines[-1]}: {first_line(error)}; expected a line as those there")
        if lines
        else None
    )


def _os_message(error: OSError) -> str:
    """The path and the reason, whatever the operating system or a library over it refused."""
    where = f"{error.filename}: " if error.filename else ""
    if error.strerror is None:  # a library's own text
        text = str(error.args[0]) if error.args else ""
        return where + (text.strip().splitlines() or [type(error).__name__])[0]
    remedy = "make room, or write elsewhere" if error.errno in NO_ROOM else "name another path, or repair this one"
    return f"{where}{error.strerror}; {remedy}, and run the command again"


def dispatch(arguments: list[str]) -> int:
    """Run one command; errors rise.

    Raises:
        UecrError: the command line, the configuration or the input is wrong.
    """
    if not arguments:
        sys.stderr.write(overview(()))
        return USER_ERROR
    if arguments[0] in HELP:
        sys.stdout.write(overview(()))
        return 0
    if arguments[0] == "--version":
        sys.stdout.write(f"nemo-uecr {__version__}\n")
        return 0
    if is_group((arguments[0],)) and (len(arguments) == 1 or arguments[1] in HELP):
        sys.stdout.write(overview((arguments[0],)))
        return 0 if len(arguments) > 1 else USER_ERROR
    command, rest = find_command(arguments)
    _log_to_stderr()
    return _run(command, rest)


def _run(command: Command, arguments: list[str]) -> int:
    module = import_module(command.module)
    # Intermixed: `train CONFIG --resume key=value` is as good as `train CONFIG key=value --resume`.
    code: int = module.run(parser_of(command, module).parse_intermixed_args(arguments))
    return code


def parser_of(command: Command, module: ModuleType) -> OneLineParser:
    """The argument parser of a command whose module is loaded."""
    parser = OneLineParser(
        prog=f"nemo-uecr {command.name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def _refuse(error: UecrError) -> int:
    sys.stderr.write(f"nemo-uecr: error: {' '.join(str(error).split())}\n")
    return USER_ERROR


def _log_to_stderr() -> None:
    """Our own progress at INFO, other libraries' at WARNING, both on standard error."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("nemo_uecr").setLevel(logging.INFO)
