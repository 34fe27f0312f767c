"""The scoring benchmark: which cases to run, in what order, each in processes of its own."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nemo_uecr.bench.scoring_ratios import report
from nemo_uecr.bench.scoring_worker import Job
from nemo_uecr.errors import UecrError

logger = logging.getLogger(__name__)

CASE_TIMEOUT_S = 900

FUSED_OPTIONS = {
    "ours": ("",),
    "product": ("whole", "tiled"),
    "plain": ("",),
    "trl": ("32768", "4096"),
    "liger": ("",),
    "verl": ("512", "128"),
}
"""Head -> the settings that it runs with."""

RIVAL_PACKAGES = {"trl": "trl", "verl": "verl", "liger": "liger_kernel", "areal": "areal", "nemo_rl": "nemo_rl"}


@dataclass(frozen=True)
class Case:
    """One line of the table: a job, its number of ranks, and a note on how it differs."""

    name: str
    job: Job
    ranks: int
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Sizes:
    """How large the problems are and how often they run."""

    tokens: int
    sharded_tokens: int
    vocab: int
    hidden: int
    rounds: int
    repetitions: int


FULL = Sizes(tokens=256, sharded_tokens=512, vocab=151_936, hidden=2560, rounds=2, repetitions=5)
QUICK = Sizes(tokens=32, sharded_tokens=32, vocab=20_011, hidden=128, rounds=1, repetitions=2)


def cases(sizes: Sizes) -> list[Case]:
    """All cases. A rival with a setting runs at its default and at others; the best counts."""
    job = Job("", "", sizes.tokens, sizes.vocab, sizes.hidden, "float32", 25.0, 1, sizes.repetitions)
    found = []
    for dtype in ("float32", "bfloat16"):
        dense = replace(job, dtype=dtype)
        found += [
            Case(f"dense/ours/{dtype}", replace(dense, case="dense/ours"), 1),
            Case(f"dense/ours_two/{dtype}", replace(dense, case="dense/ours", option="two"), 1),
            Case(f"dense/ours_torch/{dtype}", replace(dense, case="dense/ours"), 1, (("NEMO_UECR_NATIVE", "0"),)),
            Case(f"dense/plain/{dtype}", replace(dense, case="dense/plain"), 1),
        ]
        found += [
            Case(f"dense/{rival}@{chunk}/{dtype}", replace(dense, case=f"dense/{rival}", option=str(chunk)), 1)
            for rival, chunks in (("trl", (128, 8)), ("verl", (2048, 8)))
            for chunk in chunks
        ]
        sharded = replace(job, dtype=dtype, tokens=sizes.sharded_tokens)
        found.append(Case(f"sharded/ours/{dtype}", replace(sharded, case="sharded/ours"), 2))
        found += [
            Case(f"sharded/{rival}@{chunk}/{dtype}", replace(sharded, case=f"sharded/{rival}", option=str(chunk)), 2)
            for rival, chunks in (("nemo_rl", (1024, 64, 16)), ("areal", (1024, 16)))
            for chunk in chunks
        ]
    found += [
        Case("dense/ours_log_z_8/float32", replace(job, case="dense/ours", log_z=8.0), 1),
        Case("dense/ours_2_threads/float32", replace(job, case="dense/ours", threads=2), 1),
        Case("dense/plain_2_threads/float32", replace(job, case="dense/plain", threads=2), 1),
    ]
    return found + fused_cases(job)


def fused_cases(job: Job) -> list[Case]:
    """The heads that never hold the logits, and the bare product that they are measured against."""
    fused = replace(job, dtype="bfloat16")
    return [
        Case(f"fused/{rival}@{option}/bfloat16", replace(fused, case=f"fused/{rival}", option=option), 1)
        for rival, options in FUSED_OPTIONS.items()
        for option in options
    ]


def run_all(sizes: Sizes) -> dict[str, Any]:
    """Run every case once a round, so that rivals share the machine's good and bad minutes; keep the least times."""
    results: dict[str, dict[str, Any]] = {}
    for round_ in range(sizes.rounds):
        for case in cases(sizes):
            if "absent" in results.get(case.name, {}):
                continue
            fresh = run_case(case)
            shown = f"{fresh['cpu_s']:.4g} s" if "cpu_s" in fresh else fresh["absent"]
            logger.info("round %d %-34s %s", round_ + 1, case.name, shown)
            results[case.name] = least_of(results.get(case.name), fresh)
    return report(results, asdict(sizes))


def least_of(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """The least of each time, the largest of everything else."""
    if old is None or "absent" in new:
        return new
    merged = dict(new)
    for key, value in old.items():
        if value is not None and new[key] is not None:
            merged[key] = min(value, new[key]) if key in ("cpu_s", "wall_s") else max(value, new[key])
    return merged


def missing(case: Case) -> str | None:
    """Why a rival cannot run here, without starting a process for it; None if it may."""
    rival = case.job.case.split("/")[1]
    if rival == "nemo_rl" and os.environ.get("NEMO_RL_SOURCE"):
        return None
    package = RIVAL_PACKAGES.get(rival)
    if package is None or importlib.util.find_spec(package) is not None:
        return None
    return f"{package} is not installed"


def run_case(case: Case) -> dict[str, Any]:
    """Run one case, each rank in a process of its own; times are those of the slowest rank."""
    reason = missing(case)
    if reason is not None:
        return {"absent": reason}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(case.ranks):
        environment = os.environ | dict(case.environment)
        environment |= {"OMP_NUM_THREADS": str(case.job.threads), "OMP_WAIT_POLICY": "passive"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_root(), os.environ.get("PYTHONPATH"))))
        if case.ranks > 1:
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(case.ranks), "GLOO_SOCKET_IFNAME": "lo"}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-m", "nemo_uecr.bench.scoring_worker", json.dumps(asdict(case.job))]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        results = [_result(process) for process in processes]
    except CaseFailedError as error:
        if case.job.case.split("/")[1] in RIVAL_PACKAGES:  # another project's fault is no reason to lose the rest
            return {"absent": f"failed: {error}"}
        raise UecrError(f"benchmark case {case.name} failed: {error}") from error
    finally:
        for process in processes:
            process.kill()
    slowest = max(results, key=lambda result: result.get("cpu_s", 0.0))
    return dict(slowest)


class CaseFailedError(UecrError):
    """A case's process ended with an error or ran out of time."""


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON line that a case's process ends with."""
    try:
        out, errors = process.communicate(timeout=CASE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CaseFailedError(f"no result within {CASE_TIMEOUT_S} s") from error
    if process.returncode != 0:
        lines = errors.strip().splitlines()
        raise CaseFailedError(lines[-1] if lines else f"exit code {process.returncode}")
    return dict(json.loads(out.strip().splitlines()[-1]))


def _root() -> str:
    return str(Path(__file__).parents[2])
