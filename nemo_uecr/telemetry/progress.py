"""Progress for people: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

BAR_WIDTH = 24


class Progress:
    """Reports steps and evaluations on a stream."""

    def __init__(self, *, total: int, style: str, stream: TextIO | None = None) -> None:
        """Choose the form: ``style`` is "auto", "bar", "lines" or "off"."""
        self._stream = sys.stderr if stream is None else stream
        self._total = total
        self._bar = style == "bar" or (style == "auto" and self._stream.isatty())
        self._silent = style == "off"
        self._started = time.perf_counter()
        self._first: int | None = None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report a finished step."""
        if self._silent:
            return
        self._first = step if self._first is None else self._first
        shown = (
            f"step {step}/{self._total}  reward {metrics['reward/task_mean']:.3f}  "
            f"mixed groups {metrics['group/mixed_share']:.0%}  length {metrics['response/length_mean']:.1f}  "
            f"grad {metrics['policy/grad_norm']:.3f}  {metrics['time/step_s']:.2f} s"
        )
        if self._bar:
            done = round(BAR_WIDTH * step / self._total)
            self._stream.write(f"\r\x1b[2K{'█' * done}{'░' * (BAR_WIDTH - done)} {shown}  {self._remaining(step)}")
        else:
            self._stream.write(shown + "\n")
        self._stream.flush()

    def evaluation(self, step: int, record: Mapping[str, Any]) -> None:
        """Report an evaluation."""
        if self._silent:
            return
        average = record["average"]
        sets = "  ".join(f"{name} {100 * found['avg']:.1f}" for name, found in record["sets"].items())
        line = (
            f"step {step}/{self._total}  avg@{record['samples']} {100 * average['avg']:.1f} "
            f"[{100 * average['low']:.1f}, {100 * average['high']:.1f}]  {sets}  {record['seconds']:.1f} s"
        )
        self._stream.write(("\r\x1b[2K" if self._bar else "") + line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """End the bar's line."""
        if self._bar and not self._silent:
            self._stream.write("\n")
            self._stream.flush()

    def _remaining(self, step: int) -> str:
        done = step - (self._first or step) + 1
        seconds = (time.perf_counter() - self._started) / done * (self._total - step)
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"
