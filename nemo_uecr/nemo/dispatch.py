"""One method call on every worker of a group, with an end: a dead or silent worker becomes an error that names it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.errors import WorkerError
from nemo_uecr.nemo.request import ScoreRequest

#: Letters of Ray's reason for a death: a line on memory lists every process of the node.
REASON = 300


def wait(method: str, futures: Sequence[Any], names: Sequence[str], *, seconds: float) -> list[Any]:
    """The answers of the named workers to a call of a method, in their order, each fetched once.

    Raises:
        WorkerError: a worker died, raised, or did not answer in time; the first such worker is named, because its
            partners only wait for it.
    """
    import ray

    waiting = dict(zip(futures, names, strict=True))
    answers = {}
    deadline = time.monotonic() + seconds
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            silent = ", ".join(sorted(waiting.values()))
            raise WorkerError(
                f"{method}: no answer within {seconds:g} s from {silent}; expected all workers of the group. One "
                "hangs or waits for a partner: look at its log, or raise scoring.timeout_s"
            )
        name = waiting.pop(done[0])
        try:
            answers[done[0]] = ray.get(done[0])
        except ray.exceptions.RayTaskError as error:
            raise WorkerError(f"{method}: worker {name} raised {_first_line(error.cause)}") from error
        except ray.exceptions.RayError as error:  # RayActorError, and another where Ray ends a worker for memory
            raise WorkerError(
                f"{method}: worker {name} died ({_first_line(error):.{REASON}}); expected an answer. Look at its "
                "log; the usual cause is memory"
            ) from error
    return [answers[future] for future in futures]


def score_on_workers(policy: Any, data: Any, request: ScoreRequest, *, seconds: float) -> Any:
    """A policy's scores: rows cut over its data-parallel ranks as for its log-probabilities, and put back in order."""
    futures, order = upstream.begin_sharded(policy, "score_tokens", data, request=request)
    answers = wait("score_tokens", futures, upstream.worker_names(policy), seconds=seconds)
    return upstream.end_sharded(type(data), answers, order)


def call_all(policy: Any, method: str, *, seconds: float, **arguments: Any) -> list[Any]:
    """The answers of every worker to the same call."""
    futures = upstream.begin_on_all(policy, method, **arguments)
    return wait(method, futures, upstream.worker_names(policy), seconds=seconds)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
