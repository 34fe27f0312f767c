"""The same short run of the local back end on every node of a Ray cluster, and whether all come to the same numbers.

A node that computes something else, cannot be reached, does not see the shared file system or cannot save shows here,
without a GPU and before a long run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.errors import UecrError, first_line
from nemo_uecr.slurm.job import LOOKING_S, node_resource, nodes_of
from nemo_uecr.stopping import RunStopped, StopRequest
from nemo_uecr.telemetry.sinks import STEPS, read_records

__all__ = ["Outcome", "ReplicaError", "Work", "largest_difference", "train_everywhere"]

log = logging.getLogger(__name__)

#: Trains in a folder until the last step or the request.
Work = Callable[[Path, StopRequest], Path]
#: Letters of Ray's reason for a death: a line on memory lists every process of the node.
REASON = 300
#: Metrics that are measured, not computed.
MEASURED = ("time/", "throughput/", "memory/")


class ReplicaError(UecrError, RuntimeError):
    """A node of the cluster did not do what the others did."""


@dataclass(frozen=True)
class Outcome:
    """How one replica ended; exactly one of the three is given."""

    folder: Path | None
    stopped: str | None
    error: str | None


class Replica:
    """One replica, as a Ray actor with two threads: one trains, the other can be asked to end."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self._stop = StopRequest()

    def train(self, work: Work, folder: Path) -> Outcome:
        """Train; the user's errors and an early end come back as text, not as a traceback."""
        try:
            return Outcome(work(folder, self._stop), None, None)
        except RunStopped as stopped:
            return Outcome(None, str(stopped), None)
        except UecrError as error:
            return Outcome(None, None, str(error))

    def ask(self, reason: str) -> None:
        """Let the step under way be the last one."""
        self._stop.ask(reason)


def train_everywhere(work: Work, folder: Path, stop: StopRequest) -> dict[str, Path]:
    """Run ``work`` on every node of the Ray cluster that this process is connected to.

    Args:
        work: importable under its own name on every node.
        folder: each replica trains in a folder of its own below it, named after its node.
        stop: when it is asked, every replica finishes its step and saves.

    Returns:
        The run folder of each node.

    Raises:
        RunStopped: a replica ended early because it was asked to.
        ReplicaError: a replica failed or died; the message names its node.
    """
    import ray

    # 0 CPUs: no other work is placed, and a node whose CPUs are taken must not make the check wait for ever.
    maker = ray.remote(num_cpus=0, max_concurrency=2)(Replica)
    replicas: dict[str, Any] = {
        name: maker.options(resources={node_resource(name): 0.001}).remote() for name in sorted(nodes_of(ray.nodes()))
    }
    futures = {replica.train.remote(work, folder / name): name for name, replica in replicas.items()}
    outcomes: dict[str, Outcome] = {}
    asked = False
    while len(outcomes) < len(futures):
        waiting = [future for future, name in futures.items() if name not in outcomes]
        for future in ray.wait(waiting, timeout=LOOKING_S)[0]:
            outcomes[futures[future]] = _result(ray, future, futures[future])
            log.info("node %s: %s", futures[future], _told(outcomes[futures[future]]))
        if stop.asked and not asked:
            asked = True
            for replica in replicas.values():
                replica.ask.remote(stop.reason)
    return _folders(outcomes)


def largest_difference(folders: Sequence[Path]) -> float:
    """Largest relative difference of a computed metric between the first run and any other one."""
    first, *others = [_metrics(folder) for folder in folders]
    worst = 0.0
    for other in others:
        if [record.keys() for record in first] != [record.keys() for record in other]:
            return float("inf")
        for mine, theirs in zip(first, other, strict=True):
            worst = max(worst, *(abs(mine[name] - theirs[name]) / max(1.0, abs(mine[name])) for name in mine))
    return worst


def _result(ray: Any, future: Any, name: str) -> Outcome:
    try:
        outcome: Outcome = ray.get(future)
    except ray.exceptions.RayTaskError:
        raise  # it lives, and the error is none of the user's
    except ray.exceptions.RayError as error:  # RayActorError, and another where Ray ends a worker for memory
        raise ReplicaError(f"node {name}: its replica has died: {first_line(error):.{REASON}}") from error
    return outcome


def _told(outcome: Outcome) -> str:
    return outcome.error or outcome.stopped or f"done, {outcome.folder}"


def _folders(outcomes: dict[str, Outcome]) -> dict[str, Path]:
    for name, outcome in outcomes.items():
        if outcome.error is not None:
            raise ReplicaError(f"node {name}: {outcome.error}")
    for name, outcome in outcomes.items():
        if outcome.stopped is not None:
            raise RunStopped(f"node {name}: {outcome.stopped}")
    return {name: outcome.folder for name, outcome in sorted(outcomes.items()) if outcome.folder is not None}


def _metrics(folder: Path) -> list[dict[str, float]]:
    records, _ = read_records(folder / STEPS)
    return [
        {name: float(value) for name, value in record.items() if not name.startswith(MEASURED)} for record in records
    ]
