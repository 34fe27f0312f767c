"""Ports of a job's Ray cluster."""

from __future__ import annotations

from nemo_uecr.errors import ConfigError

__all__ = ["FIRST_WORKER_PORT", "WORKER_PORTS", "head_port"]

#: Below the ephemeral range, and where NeMo-RL's own port plan has Ray's workers: 10002-11000.
FIRST_WORKER_PORT, WORKER_PORTS = 10002, 998
LOWEST, HIGHEST = 1024, 65535
"""Of Ray: it starts nothing on a port that needs root."""


def head_port(number: int) -> int:
    """The port of the Ray head, which takes the next one for its clients too.

    Raises:
        ConfigError: Ray would refuse one of the two, or its workers have it.
    """
    if not LOWEST <= number < HIGHEST:
        raise ConfigError(f"--ray-port: got {number}, expected {LOWEST} to {HIGHEST - 1}")
    first, last = FIRST_WORKER_PORT, FIRST_WORKER_PORT + WORKER_PORTS - 1
    if first - 1 <= number <= last:
        raise ConfigError(
            f"--ray-port: got {number}, but the head takes it and the next one, and Ray's workers take "
            f"{first} to {last}; expected a port outside {first - 1} to {last}"
        )
    return number
