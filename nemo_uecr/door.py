"""The door for a user's own code: `FILE.py:NAME` in a configuration or on a command line names NAME in that file.

Rewards, methods, readers of data and trackers come through it. Each says what it expects; this module finds the file,
runs it and reports what is wrong in one line. A run folder may come from somebody else and names files, too: nothing
inside one is ever run.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from nemo_uecr.errors import ConfigError, first_line

#: How the configuration names something in a file.
PATTERN = r"^.+\.py:\w+$"
#: What a run folder has; `telemetry.run_folder` writes them.
RUN_FILES = ("config.yaml", "provenance.json")
#: The modules of this process by the file's place and digest: a changed file is run again.
_MODULES: dict[tuple[Path, str], ModuleType] = {}


@dataclass(frozen=True)
class Own:
    """Something from a user's file, with the file's text and the digest of the bytes that were run."""

    value: Any
    source: str
    sha256: str


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's."""
    return all((folder / name).is_file() for name in RUN_FILES)


def is_own(text: str) -> bool:
    """Whether a text names something in a file."""
    return re.match(PATTERN, text) is not None


def file_of(text: str) -> Path:
    """The file that `FILE.py:NAME` names, which may not exist."""
    return Path(text.rpartition(":")[0]).expanduser()


def load(text: str, *, expected: str, fits: Callable[[Any], bool], sha256: str | None = None) -> Own:
    """Run the file once and take NAME from it.

    Args:
        text: ``FILE.py:NAME``, the file relative to the working folder.
        expected: what NAME must be, for messages: ``a function without arguments that yields rows``.
        fits: whether a value is that.
        sha256: digest that a run recorded; another file is not run.

    Raises:
        ConfigError: No such file or name, the file fails, or NAME is something else.
    """
    file, name = file_of(text), text.rpartition(":")[2]
    content = _content(file)
    digest = hashlib.sha256(content).hexdigest()
    if sha256 is not None:
        _check_digest(file, digest, sha256)
    values = vars(_module(file, content, digest))
    if name not in values:
        fitting = [each for each, value in values.items() if not each.startswith("_") and _defined(value, values, fits)]
        there = f"; it has {', '.join(fitting)}" if fitting else ""
        raise ConfigError(f"{file} has no {name!r}; expected {expected}{there}")
    if not fits(values[name]):
        raise ConfigError(f"{text} is {_kind(values[name])}; expected {expected}")
    return Own(values[name], importlib.util.decode_source(content), digest)


def check(text: str, sha256: str | None) -> None:
    """Refuse a file that is not the one of a run, before it is loaded.

    Raises:
        ConfigError: It is missing, inside a run folder, or has another digest.
    """
    _check_digest(file_of(text), hashlib.sha256(_content(file_of(text))).hexdigest(), sha256)


def _check_digest(file: Path, digest: str, recorded: str | None) -> None:
    if digest != recorded:
        raise ConfigError(
            f"{file}: sha256 {digest[:12]} here, {recorded!s:.12} in the run; put the run's content of the file back"
        )


def failed_at(error: BaseException, file: Path) -> str:
    """An error of the user's code on one line, with the last line of the file that it passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError) and error.filename == str(file):
        lines = [error.lineno]
    place = f"line {lines[-1]}: " if lines else ""
    return f"{place}{type(error).__name__}: {first_line(error)}"


def _content(file: Path) -> bytes:
    place = file.resolve()
    if not place.is_file():
        raise ConfigError(f"{file}: no such file; expected FILE.py:NAME, a Python file and a name in it")
    for folder in place.parents:
        if is_run(folder):
            raise ConfigError(f"{file} is inside the run folder {folder}, whose code is never run; move it elsewhere")
    return place.read_bytes()


def _module(file: Path, content: bytes, digest: str) -> ModuleType:
    """The module of a file, run the first time."""
    place = file.resolve()
    if (place, digest) in _MODULES:
        return _MODULES[place, digest]
    beside = str(place.parent)
    if beside not in sys.path:  # last: what this package imports later is not hidden by files of the user's
        sys.path.append(beside)
    # By its own name the processes that it spawns find it, unless a package has that name: wandb.py, math.py.
    name = place.stem
    if not name.isidentifier() or name in sys.modules or _origin(name) != str(place):
        name = f"{name}_{digest[:8]}"
    spec = importlib.machinery.ModuleSpec(name, importlib.machinery.SourceFileLoader(name, str(place)))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    module.__file__ = str(place)
    sys.path.insert(0, beside)  # first, as for any script, while it imports the files beside it
    try:
        # The bytes of the digest; the import system might take older ones from its cache.
        exec(compile(content, str(place), "exec"), vars(module))  # noqa: S102 - the configuration names the file
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{file} cannot be imported: {failed_at(error, place)}") from error
    finally:
        sys.path.remove(beside)
    _MODULES[place, digest] = module
    return module


def _origin(name: str) -> str | None:
    importlib.invalidate_caches()  # the file may be new
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin


def _defined(value: object, values: dict[str, Any], fits: Callable[[Any], bool]) -> bool:
    return getattr(value, "__module__", None) == values["__name__"] and fits(value)


def _kind(value: object) -> str:
    return f"a {'class' if isinstance(value, type) else type(value).__name__}"
