"""One case of the scoring benchmark in its own process: reads a job, writes one JSON line.

Run as `python -m benchmarks.scoring_worker JOB`, JOB being a `Job` in JSON. With more than one rank, each
rank is such a process, with torchrun's variables in its environment.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.collectives import CollectiveCount
from benchmarks.memory import can_reset_peak, peak_resident, reset_peak
from benchmarks.scoring_cases import BUILDERS, Inputs, Outcome, Run, hidden_inputs, logits_inputs
from nemo_uecr.scoring import native

CHECKED_TOKENS = 16
SMALL_TOKENS = 2
MEBI = 1_048_576


@dataclass(frozen=True)
class Job:
    """What to run. `option` is the case's own setting, such as a chunk size."""

    case: str
    option: str
    tokens: int
    vocab: int
    hidden: int
    dtype: str
    log_z: float
    threads: int
    repetitions: int


@dataclass
class Measured:
    """What one process found. Times in seconds, the least of the repetitions; memory in MiB."""

    cpu_s: float
    wall_s: float
    peak_extra_mb: float | None
    error_logp: float | None
    error_entropy: float | None
    collectives: int
    collective_bytes: int
    native: bool


def main(argument: str) -> int:
    """Run the job and write the result, or the reason why it is absent."""
    logging.disable(logging.WARNING)
    job = Job(**json.loads(argument))
    torch.set_num_threads(job.threads)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        dist.init_process_group("gloo")
    try:
        with torch.no_grad():
            result: dict[str, Any] = asdict(measure(job, rank, size))
    except ImportError as error:
        result = {"absent": f"{type(error).__name__}: {error}".splitlines()[0]}
    sys.stdout.write("\n" + json.dumps(result) + "\n")
    if size > 1:
        dist.destroy_process_group()
    return 0


def measure(job: Job, rank: int, size: int) -> Measured:
    """Warm up on a few tokens, take the peak memory of one call, then time the repetitions."""
    if job.case.startswith("fused/"):
        inputs = hidden_inputs(job.tokens, job.vocab, job.hidden, job.dtype)
    else:
        inputs = logits_inputs(job.tokens, job.vocab, job.dtype, job.log_z, rank, size)
    build = BUILDERS[job.case]
    build(inputs.first(SMALL_TOKENS), job.option)()
    run = build(inputs, job.option)
    outcome, peak = peak_of(run)
    cpu, wall = least_time(run, job.repetitions, size)
    with CollectiveCount(torch.device("cpu")) as count:  # in a run of its own: counting takes memory and time
        run()
    collectives, sent = max(count.at_backend, len(count.seen)), sum(one.sent for one in count.seen)
    errors = errors_of(inputs, outcome, size)
    return Measured(cpu, wall, peak, *errors, collectives, sent, native.native_is_built())


def least_time(run: Run, repetitions: int, size: int) -> tuple[float, float]:
    """Least processor time of this process, and least wall time."""
    cpu, wall = float("inf"), float("inf")
    for _ in range(repetitions):
        if size > 1:
            dist.barrier()
        started, started_cpu = time.perf_counter(), time.process_time()
        run()
        cpu, wall = min(cpu, time.process_time() - started_cpu), min(wall, time.perf_counter() - started)
    return cpu, wall


def peak_of(run: Run) -> tuple[Outcome, float | None]:
    """The outcome, and by how much resident memory rose at most beyond what the outcome itself takes."""
    if not can_reset_peak():
        return run(), None
    before = reset_peak()
    outcome = run()
    kept = sum(tensor.numel() * tensor.element_size() for tensor in outcome or ())
    return outcome, max(0, peak_resident() - before - kept) / MEBI


def errors_of(inputs: Inputs, outcome: Outcome, size: int) -> tuple[float | None, float | None]:
    """Largest error of log-probability and entropy against float64 on the first tokens of an unsharded case."""
    if outcome is None or size > 1:
        return None, None
    some = inputs.first(CHECKED_TOKENS)
    rows = some.rows.double()
    logits = rows if some.weight is None else rows @ some.weight.double().T
    log_p = torch.log_softmax(logits, -1)
    logp = log_p.gather(1, some.target.unsqueeze(1)).squeeze(1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return tuple(  # type: ignore[return-value]
        float((found[:CHECKED_TOKENS].double() - exact).abs().max())
        for found, exact in zip(outcome, (logp, entropy), strict=True)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
