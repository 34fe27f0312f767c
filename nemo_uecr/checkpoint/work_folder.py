"""The folder beside OUT in which a conversion works, and from which an interrupted one goes on.

It is named `.OUT.partial`. Its journal says what it is being made from and which files in it are complete; a
conversion of anything else begins anew. OUT appears by one rename, after the verification.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nemo_uecr.errors import CheckpointError
from nemo_uecr.files import file_sha256, replace_file, sync_folder
from nemo_uecr.stopping import note_progress

logger = logging.getLogger(__name__)

JOURNAL = ".journal.json"


class WorkFolder:
    """An unfinished OUT."""

    def __init__(self, path: Path, making: dict[str, Any]) -> None:
        """Go on with the folder where it is being made from the same, else empty it.

        Args:
            path: the folder.
            making: what OUT is made from.
        """
        self.path = path
        self._making = making
        self._complete: dict[str, str] = {}
        known = _journal(path)
        if known is not None and known["making"] == making:
            self._complete = dict(known["complete"])
            logger.info("resuming: %d complete files in %s", len(self._complete), path.name)
            return
        if path.exists():
            logger.info("%s was left by another or an unreadable conversion; beginning anew", path.name)
            shutil.rmtree(path)
        path.mkdir(parents=True)
        self._write_journal()

    def has(self, name: str) -> bool:
        """Whether a file is complete and still what it was."""
        known, path = self._complete.get(name), self.path / name
        return known is not None and path.is_file() and file_sha256(path) == known

    def has_all(self, prefix: str) -> bool:
        """Whether files with this prefix were complete, and all of them still are what they were."""
        names = [name for name in self._complete if name.startswith(prefix)]
        return bool(names) and all(self.has(name) for name in names)

    def complete(self, *names: str) -> None:
        """Note files as complete; they are pushed to disk first."""
        before = dict(self._complete)
        for name in names:
            with (self.path / name).open("rb") as file:
                os.fsync(file.fileno())
            self._complete[name] = file_sha256(self.path / name)
        self._write_journal()
        if self._complete != before:  # a small file that each attempt writes again is no progress
            note_progress()

    def hashes(self) -> dict[str, str]:
        """sha256 of every complete file."""
        return dict(sorted(self._complete.items()))

    def finish(self, out: Path) -> None:
        """Give the folder its name. Only files that are complete are in it then."""
        for path in sorted(self.path.rglob("*")):
            if path.is_file() and str(path.relative_to(self.path)) not in self._complete:
                path.unlink()
        for folder in sorted((path for path in self.path.rglob("*") if path.is_dir()), reverse=True):
            sync_folder(folder)
        sync_folder(self.path)
        self.path.rename(out)
        sync_folder(out.parent)

    def _write_journal(self) -> None:
        content = json.dumps({"making": self._making, "complete": self._complete}, indent=1)
        replace_file(self.path / JOURNAL, content.encode())


def _journal(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((path / JOURNAL).read_bytes())
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and "making" in found and isinstance(found.get("complete"), dict)
    return found if whole else None


def refuse_nested(ckpt: Path, out: Path) -> None:
    """Refuse an OUT within CKPT, which would change it, and a CKPT within OUT.

    Raises:
        CheckpointError: one folder is within the other, links followed.
    """
    source, target = ckpt.resolve(), out.resolve()
    if source in target.parents:
        raise CheckpointError(f"{out}: lies within the checkpoint {ckpt}; choose an --to outside of it")
    if target == source or target in source.parents:
        raise CheckpointError(f"{out}: holds the checkpoint {ckpt}; choose an --to that does not exist")


def partial_of(out: Path) -> Path:
    """Where OUT is made."""
    return out.with_name(f".{out.name}.partial")


def refuse_occupied(out: Path) -> None:
    """Refuse an OUT that holds anything, and a link.

    Raises:
        CheckpointError: it does.
    """
    if out.is_symlink():
        raise CheckpointError(f"{out}: is a link, which a finished folder cannot replace; name the folder itself")
    if out.is_file() or (out.is_dir() and next(out.iterdir(), None) is not None):
        raise CheckpointError(f"{out}: occupied; expected a folder that does not exist. Choose another --to")


@contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Hold OUT for this process; a killed process lets go of it.

    Raises:
        CheckpointError: OUT is there already, is being made by another process, or cannot be written.
    """
    lock = FileLock(out.with_name(f".{out.name}.lock"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise CheckpointError(f"{out}: another process is converting into it; wait for its end") from None
    except OSError as error:
        raise CheckpointError(f"{out.parent}: cannot write there ({error.strerror})") from error
    try:
        refuse_occupied(out)  # once more: it may have been finished since
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
