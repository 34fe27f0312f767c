"""The time of a step and of its phases."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

__all__ = ["Stopwatch", "timing"]


class Stopwatch:
    """Seconds of each phase of a step."""

    def __init__(self) -> None:
        """Start the step's clock."""
        self._started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def total(self) -> float:
        """Seconds since the step began."""
        return time.perf_counter() - self._started


def timing(watch: Stopwatch, tokens: int) -> dict[str, float]:
    """The step's metrics of time; `tokens` are those in the loss."""
    total = watch.total()
    return {
        **{f"time/{name}_s": seconds for name, seconds in watch.seconds.items()},
        "time/step_s": total,
        "throughput/rollout_tokens_per_s": tokens / watch.seconds["rollout"],
        "throughput/tokens_per_s": tokens / total,
    }
