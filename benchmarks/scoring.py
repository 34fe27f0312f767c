"""Token scoring beside what other projects offer: cases, ratios and the table, each case in processes of its own.

python -m benchmarks.scoring [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import platform
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.scoring_worker import Job
from nemo_uecr.cli.common import write_json
from nemo_uecr.data.reproducible import installed
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
        command = [sys.executable, "-m", "benchmarks.scoring_worker", json.dumps(asdict(case.job))]
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
    return str(Path(__file__).parents[1])


def report(results: dict[str, dict[str, Any]], sizes: dict[str, int]) -> dict[str, Any]:
    """The ratios, theirs over ours in processor time of one thread a process, and what they rest on.

    Args:
        results: figures of every case by its name.
        sizes: how large the problems were, by the names of `bench.scoring.Sizes`.
    """
    ours = results["dense/ours/float32"]
    sharded = results["sharded/ours/float32"]
    near_8 = results["dense/ours_log_z_8/float32"]
    return {
        "ratios": ratios(results, "float32"),
        "ratios_bfloat16": ratios(results, "bfloat16"),
        "ratios_fused": fused_ratios(results),
        "two_temperatures": {
            dtype: quotient(results[f"dense/ours_two/{dtype}"], results[f"dense/ours/{dtype}"])
            for dtype in ("float32", "bfloat16")
        },
        "two_threads_wall": results["dense/plain_2_threads/float32"]["wall_s"]
        / results["dense/ours_2_threads/float32"]["wall_s"],
        "collectives": sharded["collectives"],
        "bytes_per_token": sharded["collective_bytes"] / sizes["sharded_tokens"],
        "peak_extra_mb": max_of(ours["peak_extra_mb"], results["dense/ours/bfloat16"]["peak_extra_mb"]),
        "peak_extra_mb_fused": results["fused/ours@/bfloat16"]["peak_extra_mb"],
        "max_error": {
            "logp_log_z_25": ours["error_logp"],
            "entropy_log_z_25": ours["error_entropy"],
            "logp_log_z_8": near_8["error_logp"],
            "entropy_log_z_8": near_8["error_entropy"],
        },
        "sizes": sizes,
        "cases": results,
        "versions": surroundings(),
    }


def ratios(results: dict[str, dict[str, Any]], dtype: str) -> dict[str, float | None]:
    """How many times slower each rival is on logits of one dtype; null where a rival is absent."""
    ours, sharded = results[f"dense/ours/{dtype}"], results[f"sharded/ours/{dtype}"]
    return {
        "naive_fp32": quotient(results[f"dense/plain/{dtype}"], ours),
        "trl": quotient(best(results, "dense/trl@", dtype), ours),
        "verl": quotient(best(results, "dense/verl@", dtype), ours),
        "ours_without_native": quotient(results[f"dense/ours_torch/{dtype}"], ours),
        "nemo_rl_tp2_chunk1024": quotient(results[f"sharded/nemo_rl@1024/{dtype}"], sharded),
        "nemo_rl_tp2_best": quotient(best(results, "sharded/nemo_rl@", dtype), sharded),
        "areal_tp2_chunk1024": quotient(results[f"sharded/areal@1024/{dtype}"], sharded),
        "areal_tp2_best": quotient(best(results, "sharded/areal@", dtype), sharded),
    }


def fused_ratios(results: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """The fused head over the bare product, and how many times slower each rival head is."""
    ours = results["fused/ours@/bfloat16"]
    return {
        "ours_over_bare_product": quotient(ours, best(results, "fused/product@", "bfloat16")),
        "ours_over_product_in_our_tiles": quotient(ours, results["fused/product@tiled/bfloat16"]),
        "naive": quotient(results["fused/plain@/bfloat16"], ours),
        "trl": quotient(best(results, "fused/trl@", "bfloat16"), ours),
        "liger": quotient(best(results, "fused/liger@", "bfloat16"), ours),
        "verl": quotient(best(results, "fused/verl@", "bfloat16"), ours),
    }


def best(results: dict[str, dict[str, Any]], prefix: str, dtype: str) -> dict[str, Any]:
    """The fastest setting of a rival, or an absent one."""
    found = [result for name, result in results.items() if name.startswith(prefix) and name.endswith(dtype)]
    return min(found, key=lambda result: result.get("cpu_s", float("inf")))


def quotient(theirs: dict[str, Any], ours: dict[str, Any]) -> float | None:
    """Processor time of one over the other; None where one is absent."""
    if "absent" in theirs or "absent" in ours:
        return None
    return float(theirs["cpu_s"] / ours["cpu_s"])


def max_of(*values: float | None) -> float | None:
    """The largest, or None where one is unknown."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def table(results: dict[str, Any]) -> str:
    """Markdown: one row a case, then the ratios."""
    lines = ["| case | CPU s | wall s | extra MiB | error logp | error H | collectives |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, case in results["cases"].items():
        if "absent" in case:
            lines.append(f"| {name} | absent: {case['absent']} | | | | | |")
            continue
        cells = [_number(case[key]) for key in ("cpu_s", "wall_s", "peak_extra_mb", "error_logp", "error_entropy")]
        lines.append(f"| {name} | {' | '.join(cells)} | {case['collectives'] or ''} |")
    lines += ["", "| ratio | value |", "|---|---|"]
    for group in ("ratios", "ratios_bfloat16", "ratios_fused", "two_temperatures", "max_error"):
        lines += [f"| {group}: {name} | {_number(value)} |" for name, value in results[group].items()]
    for name in ("two_threads_wall", "collectives", "bytes_per_token", "peak_extra_mb", "peak_extra_mb_fused"):
        lines.append(f"| {name} | {_number(results[name])} |")
    lines += ["", ", ".join(f"{name} {value or 'absent'}" for name, value in results["versions"].items()), ""]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


PACKAGES = ("torch", "trl", "verl", "liger-kernel", "areal", "megatron-core", "triton", "transformers")


def surroundings() -> dict[str, str | None]:
    """Versions of what took part, and the processor; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "processor": _processor()}
    found |= {package: installed(package) for package in PACKAGES}
    found["nemo-rl"] = _commit(os.environ.get("NEMO_RL_SOURCE"))
    return found


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit(source: str | None) -> str | None:
    if not source:
        return None
    command = ["git", "-C", source, "describe", "--tags", "--always"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all results to this file")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: checks that it runs")


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, write the table, and the JSON file if asked."""
    results = run_all(QUICK if args.quick else FULL)
    sys.stdout.write(table(results))
    write_json(args.json, results)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    sys.exit(run(parser.parse_intermixed_args()))
