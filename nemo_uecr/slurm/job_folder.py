"""The files, on the shared file system, by which the batch script and the nodes of a job talk to each other.

Files and not messages: they cross the container's boundary, need no port, and are there to be read after a failure.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from nemo_uecr.files import replace_file

__all__ = ["JobFolder"]


class JobFolder:
    """The folder of one attempt of a job."""

    def __init__(self, path: Path) -> None:
        """Name the folder; the batch script has made it."""
        self.path = path

    def log_of(self, node: str) -> Path:
        """The log of a node."""
        return self.path / f"node-{node}.log"

    @property
    def driver_log(self) -> Path:
        """What the driver printed."""
        return self.path / "driver.log"

    def blame(self, node: str, reason: str) -> None:
        """State the cause of the failure in one line; the first one stays, later ones follow from it."""
        line = f"node {node}: {' '.join(reason.split())}\n"
        with contextlib.suppress(FileExistsError):
            # Linked into place: a reader sees the whole line or no file.
            aside = self.path / f".cause-{node}-{os.getpid()}"
            aside.write_text(line, encoding="utf-8")
            try:
                os.link(aside, self.path / "cause")
            finally:
                aside.unlink()

    def cause(self) -> str | None:
        """The stated cause of the failure."""
        return self._read("cause")

    def stop_asked(self) -> bool:
        """Whether the batch script wants the run to save and end."""
        return (self.path / "stop").exists()

    def publish_head(self, address: str) -> None:
        """Say where the head of the Ray cluster listens."""
        self._write("head-address", address)

    def head_address(self) -> str | None:
        """Where the head listens; None before it does."""
        return self._read("head-address")

    def report(self, status: str) -> None:
        """The head's status in one line; its age says whether the head is alive."""
        self._write("status", status)

    def end(self, code: int) -> None:
        """The driver has ended with this code: every node leaves."""
        self._write("ended", str(code))

    def ended(self) -> bool:
        """Whether the driver has ended."""
        return (self.path / "ended").exists()

    def script_ended(self) -> bool:
        """Whether the batch script has said its last line: a node that Slurm forgot to end hears nothing else."""
        return (self.path / "final").exists()

    def leave(self, node: str) -> None:
        """The node has stopped its Ray."""
        self._write(f"left-{node}", "")

    def left(self) -> set[str]:
        """Nodes that have stopped their Ray."""
        return {path.name.removeprefix("left-") for path in self.path.glob("left-*")}

    def _write(self, name: str, text: str) -> None:
        replace_file(self.path / name, text.encode())

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
