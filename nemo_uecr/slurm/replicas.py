"""Runs the same short local training on every node of a Ray cluster, and compares the results.

This finds, before a long run and without GPUs, a node that computes other numbers, cannot be reached, does not see the
shared file system or cannot save.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.errors import UecrError, first_line
from nemo_uecr.slurm.node import POLL_S, node_resource, nodes_of
from nemo_uecr.stopping import RunStopped, StopRequest
from nemo_uecr.telemetry.sinks import STEPS, read_records

log = logging.getLogger(__name__)

Work = Callable[[Path, StopRequest], Path]  # trains in a folder until the last step or the request
TOLERANCE = 1e-6  # equal machines agree to the last bit; others round differently
REASON = 300  # most characters of Ray's reason for a death, which may list every process of the node
MEASURED = ("time/", "throughput/", "memory/")  # metrics that are measured, not computed


class ReplicaError(UecrError, RuntimeError):
    """A replica failed, or its result differs from the others'."""


class Replica:
    """A Ray actor with two threads: one trains, the other receives requests to stop."""

    def __init__(self) -> None:
        self._stop = StopRequest()

    def train(self, work: Work, folder: Path) -> tuple[str, str]:
        """Train, and return "done" with the run folder, or "stopped" or "failed" with a message."""
        try:
            return "done", str(work(folder, self._stop))
        except RunStopped as stopped:
            return "stopped", str(stopped)
        except UecrError as error:
            return "failed", str(error)

    def ask(self, reason: str) -> None:
        """Stop after the current step."""
        self._stop.ask(reason)


def compare_nodes(work: Work, folder: Path, stop: StopRequest) -> tuple[list[str], float]:
    """Run ``work`` on every node of the connected Ray cluster and compare the metrics.

    Each replica trains in ``folder``/NODE and saves when ``stop`` is asked. Returns the nodes' names and the largest
    relative difference of a metric between them.
    """
    outcomes = dict(sorted(_train_everywhere(work, folder, stop).items()))
    for name, (how, text) in sorted(outcomes.items(), key=lambda item: item[1][0]):  # a failure comes first
        if how != "done":
            raise (RunStopped if how == "stopped" else ReplicaError)(f"node {name}: {text}")
    difference = largest_difference([Path(text) for _, text in outcomes.values()])
    if not difference <= TOLERANCE:
        raise ReplicaError(
            f"nodes {', '.join(outcomes)} disagree: a metric differs by {difference:.3g}, "
            f"expected {TOLERANCE:g} at most"
        )
    return list(outcomes), difference


def _train_everywhere(work: Work, folder: Path, stop: StopRequest) -> dict[str, tuple[str, str]]:
    import ray

    # 0 CPUs, so that a node with busy CPUs does not block the check forever.
    maker = ray.remote(num_cpus=0, max_concurrency=2)(Replica)
    replicas: dict[str, Any] = {
        name: maker.options(resources={node_resource(name): 0.001}).remote() for name in nodes_of(ray.nodes())
    }
    waiting = {replica.train.remote(work, folder / name): name for name, replica in replicas.items()}
    outcomes: dict[str, tuple[str, str]] = {}
    asked = False
    while waiting:
        for future in ray.wait(list(waiting), timeout=POLL_S)[0]:
            name = waiting.pop(future)
            outcomes[name] = outcome_of(future, name)
            log.info("node %s: %s, %s", name, *outcomes[name])
        if stop.asked and not asked:
            asked = True
            for replica in replicas.values():
                replica.ask.remote(stop.reason)
    return outcomes


def outcome_of(future: Any, name: str) -> tuple[str, str]:
    """The result of a replica; ReplicaError if it has died."""
    import ray

    try:
        outcome: tuple[str, str] = ray.get(future)
    except ray.exceptions.RayTaskError:
        raise  # a defect, not a dead replica
    except ray.exceptions.RayError as error:  # RayActorError, and another where Ray ends a worker for memory
        raise ReplicaError(f"node {name}: its replica has died: {first_line(error):.{REASON}}") from error
    return outcome


def largest_difference(folders: Sequence[Path]) -> float:
    """Largest relative difference of a computed metric between the first run and any other."""
    first, *others = [
        {
            (step, name): float(value)
            for step, record in enumerate(read_records(folder / STEPS)[0])
            for name, value in record.items()
            if not name.startswith(MEASURED)
        }
        for folder in folders
    ]
    if any(other.keys() != first.keys() for other in others):
        return float("inf")
    gaps = (abs(own - other[key]) / max(1.0, abs(own)) for other in others for key, own in first.items())
    return max(gaps, default=0.0)
