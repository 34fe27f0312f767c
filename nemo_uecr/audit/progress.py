"""One line of progress for work that a person waits for."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

#: Seconds between two lines where the stream is no terminal; faster work stays silent.
QUIET = 5.0
#: Seconds between two states of the line on a terminal.
REFRESH = 0.2


class ProgressLine:
    """Says how much of a known amount is done: a line rewritten on a terminal, now and then a line elsewhere."""

    def __init__(self, what: str, total: int, stream: TextIO | None = None) -> None:
        """Begin; ``what`` names the work."""
        self._what, self._total, self._done = what, total, 0
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._began = self._shown = time.perf_counter()

    def __enter__(self) -> ProgressLine:
        """Use as a block, so that the terminal's line is cleared at its end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the terminal's line."""
        if self._live:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def advance(self, amount: int) -> None:
        """Add to what is done."""
        self._done += amount
        now = time.perf_counter()
        if now - self._shown < (REFRESH if self._live else QUIET):
            return
        self._shown = now
        left = (now - self._began) / self._done * (self._total - self._done)
        shown = f"{self._what}: {self._done} of {self._total}, {left:.0f} s left"
        self._stream.write(f"\r\x1b[2K{shown}" if self._live else shown + "\n")
        self._stream.flush()
