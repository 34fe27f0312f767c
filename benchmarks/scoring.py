"""Token scoring compared with other projects: time, memory, error and collectives of each case.

  python -m benchmarks.scoring [--quick] [--device cuda] [--json FILE] [--cases NAME ...]

Each case runs in its own processes, once per round, so that the machine's load affects all alike; the least processor
time counts, on a GPU the least wall time. Other projects are measured if they are installed; NEMO_RL_SOURCE names a
source tree of NeMo-RL.

Legend: N tokens, V vocabulary columns (of this rank's shard).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.measure import MEBI, collectives_begun, least_seconds, outputs_of, peak_extra
from nemo_uecr.cli.common import write_json
from nemo_uecr.reproducible import installed
from nemo_uecr.scoring.dense import token_scores
from nemo_uecr.scoring.records import TokenScores, VocabShard
from nemo_uecr.tables import markdown_table

Run = Callable[[], tuple[Tensor, Tensor] | None]
PACKAGES = ("torch", "trl", "verl", "areal", "megatron-core", "triton", "transformers")
CHECKED_TOKENS = 16
SMALL_TOKENS = 2
GPU_TOKENS = 4096


@dataclass(frozen=True)
class Case:
    """One line of the table; `option` is the case's own setting, such as a chunk size."""

    kind: str
    dtype: str
    option: str = ""
    tokens: int = 256
    vocab: int = 151_936
    log_z: float = 25.0
    threads: int = 1
    native: str = "1"
    repetitions: int = 5
    device: str = "cpu"

    @property
    def clock(self) -> str:
        """The reported time."""
        return "cpu_s" if self.device == "cpu" else "wall_s"

    @property
    def ranks(self) -> int:
        """Processes that share the vocabulary."""
        return 2 if self.kind.startswith("sharded") else 1

    @property
    def name(self) -> str:
        """Kind, option, dtype and other settings."""
        option = self.option and f"@{self.option}"
        threads = "" if self.threads == 1 else f"/{self.threads} threads"
        apart = ("" if self.native == "1" else "/torch") + ("" if self.log_z == 25 else f"/log Z {self.log_z:g}")
        return f"{self.kind}{option}/{self.dtype}{threads}{apart}"


def cases() -> list[Case]:
    """All cases. A rival with a chunk size runs at its default and at smaller ones."""
    found = []
    for dtype in ("float32", "bfloat16"):
        ours = Case("dense/ours", dtype)
        found += [ours, replace(ours, option="two"), replace(ours, native="0"), Case("dense/plain", dtype)]
        found += [Case(f"dense/{rival}", dtype, chunk) for rival, *chunks in RIVAL_CHUNKS for chunk in chunks]
        found.append(Case("sharded/ours", dtype, tokens=512))
        found += [Case("sharded/nemo_rl", dtype, chunk, tokens=512) for chunk in ("1024", "64", "16")]
        found += [Case("sharded/areal", dtype, chunk, tokens=512) for chunk in ("1024", "16")]
    found += [Case("dense/ours", "float32", log_z=8.0)]
    return found + [Case(kind, "float32", threads=2) for kind in ("dense/ours", "dense/plain")]


RIVAL_CHUNKS = (("trl", "128", "8"), ("verl", "2048", "8"))


@dataclass(frozen=True)
class Inputs:
    """One problem; `rows_N` are logits [N, V]."""

    rows_N: Tensor
    target_N: Tensor
    first_column: int

    def first(self, tokens: int) -> Inputs:
        """The same problem with only its first tokens."""
        return replace(self, rows_N=self.rows_N[:tokens], target_N=self.target_N[:tokens])


def made_inputs(case: Case, rank: int) -> Inputs:
    """Logits with a few likely tokens per row and a log-partition of `log_z`."""
    torch.manual_seed(1)
    dtype, tokens, vocab = getattr(torch, case.dtype), case.tokens, case.vocab
    logits = torch.randn(tokens, vocab).mul_(2.0)
    likely = torch.randint(0, vocab, (tokens, 8))
    logits.scatter_(1, likely, torch.rand(tokens, 8) * 6.0 + 14.0)
    for row in logits:
        row += case.log_z - torch.logsumexp(row, 0)
    target = torch.where(torch.arange(tokens) % 2 == 0, likely[:, 0], torch.randint(0, vocab, (tokens,)))
    start, stop = vocab * rank // case.ranks, vocab * (rank + 1) // case.ranks
    return Inputs(logits[:, start:stop].to(dtype).contiguous(), target, start)


def plain(logits_NV: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 log-softmax, gather and entropy."""
    log_p = torch.log_softmax(logits_NV.float(), -1)
    return log_p.gather(1, target_N.unsqueeze(1)).squeeze(1), -(log_p.exp() * log_p).sum(-1)


def _pair(scores: TokenScores) -> tuple[Tensor, Tensor]:
    assert scores.entropy is not None
    return scores.at(1.0), scores.entropy


def _ours(x: Inputs, option: str) -> Run:
    temperatures = (1.0, 0.7) if option == "two" else (1.0,)
    shard = VocabShard(x.first_column, None) if dist.is_initialized() else None
    return lambda: _pair(token_scores(x.rows_N, x.target_N, temperatures=temperatures, entropy=True, shard=shard))


def _trl(x: Inputs, option: str) -> Run:
    trl = importlib.import_module("trl.trainer.utils")
    return lambda: (
        trl.selective_log_softmax(x.rows_N, x.target_N).float(),
        trl.entropy_from_logits(x.rows_N, chunk_size=int(option)).float(),
    )


def _verl(x: Inputs, option: str) -> Run:
    verl = importlib.import_module("verl.utils.torch_functional")
    return lambda: (
        verl.logprobs_from_logits_v2(x.rows_N, x.target_N).float(),
        verl.entropy_from_logits_with_chunking(x.rows_N, chunk_size=int(option)),
    )


def _nemo_rl(x: Inputs, option: str) -> Run:
    sys.path.append(os.environ.get("NEMO_RL_SOURCE", ""))
    nemo_rl = importlib.import_module("nemo_rl.distributed.model_utils")
    chunk, group, end = int(option), dist.group.WORLD, x.first_column + x.rows_N.shape[1]
    logits, target = x.rows_N.unsqueeze(0), x.target_N.unsqueeze(0)
    return lambda: (
        nemo_rl.ChunkedDistributedLogprob.apply(logits, target, x.first_column, end, chunk, group, True)[0],
        -nemo_rl.ChunkedDistributedEntropy.apply(logits, chunk, group, True)[0],
    )


def _areal(x: Inputs, option: str) -> Run:
    areal = importlib.import_module("areal.utils.functional.vocab_parallel")
    group = dist.group.WORLD
    return lambda: areal.gather_logprobs_entropy(x.rows_N, x.target_N, tp_group=group, chunk_size=int(option))


BUILDERS: dict[str, Callable[[Inputs, str], Run]] = {
    "dense/ours": _ours,
    "dense/plain": lambda x, option: lambda: plain(x.rows_N, x.target_N),
    "dense/trl": _trl,
    "dense/verl": _verl,
    "sharded/ours": _ours,
    "sharded/nemo_rl": _nemo_rl,
    "sharded/areal": _areal,
}


def measure(case: Case, rank: int) -> dict[str, Any]:
    """Warm up on a few tokens, take the peak memory of one call, then the least time of the repetitions.

    Seconds and MiB; errors are the largest against float64 on the first tokens of an unsharded case.
    """
    with torch.device(case.device):
        inputs = made_inputs(case, rank)
    try:
        BUILDERS[case.kind](inputs.first(SMALL_TOKENS), case.option)()
    except ImportError as error:
        return {"absent": str(error).splitlines()[0]}
    run = BUILDERS[case.kind](inputs, case.option)
    outcome, peak = peak_extra(run, device=case.device)
    kept = sum(tensor.nbytes for tensor in outcome or ())
    found: dict[str, Any] = {"peak_extra_mb": max(0, peak - kept) / MEBI, **least_seconds(run, case.repetitions)}
    begun = collectives_begun()
    run()
    found["collectives"] = collectives_begun() - begun
    if outcome is not None and case.ranks == 1:
        some = inputs.first(CHECKED_TOKENS)
        log_p = torch.log_softmax(some.rows_N.double(), -1)
        exact = log_p.gather(1, some.target_N.unsqueeze(1)).squeeze(1), -(log_p.exp() * log_p).sum(-1)
        for name, value, true in zip(("error_logp", "error_entropy"), outcome, exact, strict=True):
            found[name] = float((value[:CHECKED_TOKENS] - true).abs().max())
    return found


def run_case(case: Case) -> dict[str, Any]:
    """Measure a case, each rank in a process of its own; the figures are those of the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--one", json.dumps(asdict(case)), "--meeting", f"{folder}/ranks"]
        environment = {"NEMO_UECR_NATIVE": case.native}
        try:
            outputs = outputs_of(
                "benchmarks.scoring", words, threads=case.threads, ranks=case.ranks, environment=environment
            )
        except subprocess.CalledProcessError as error:
            if case.kind.split("/")[1] in ("ours", "plain"):
                raise
            return {"absent": f"failed, exit code {error.returncode}"}  # the other cases go on
    found: list[dict[str, Any]] = [json.loads(output.splitlines()[-1]) for output in outputs]
    return max(found, key=lambda one: one.get(case.clock, 0.0))


def table(results: dict[Case, dict[str, Any]]) -> str:
    """A Markdown table, one row per case. The last column is its time over that of this package's own case."""
    columns = ("cpu_s", "wall_s", "peak_extra_mb", "error_logp", "error_entropy", "collectives")
    rows = []
    for case, found in results.items():
        ours: dict[str, Any] = results.get(
            replace(case, kind=f"{case.kind.split('/')[0]}/ours", option="", native="1"), {}
        )
        if "absent" in found:
            rows.append([case.name, f"absent: {found['absent']}", *[""] * len(columns)])
            continue
        cells = [f"{found[key]:.4g}" if key in found else "" for key in columns]
        over = f"{found[case.clock] / ours[case.clock]:.3g}" if ours else ""
        rows.append([case.name, *cells, over])
    return "\n".join(markdown_table(["case", *columns, "over ours"], rows)) + "\n"


def main() -> None:
    """Run the cases, print the table, and write the JSON file if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: checks that it runs")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: without threads and ranks")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="only the cases whose name begins so")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        _measure_one(Case(**json.loads(args.one)), args.meeting)
        return
    chosen = [case for case in cases() if args.cases is None or case.name.startswith(tuple(args.cases))]
    if args.device == "cuda":
        here = [case for case in chosen if case.ranks == case.threads == 1 and case.native == "1"]
        chosen = [replace(case, device="cuda", tokens=GPU_TOKENS) for case in here]
    if args.quick:
        chosen = [replace(case, tokens=32, vocab=20_011, repetitions=2) for case in chosen]
    results: dict[Case, dict[str, Any]] = {}
    for _ in range(1 if args.quick or args.device == "cuda" else 2):
        for case in chosen:
            found, old = run_case(case), results.get(case, {})
            least = {key: min(found[key], old.get(key, found[key])) for key in ("cpu_s", "wall_s") if key in found}
            results[case] = found | least
            sys.stderr.write(f"{case.name}: {results[case]}\n")
    sys.stdout.write(table(results))
    versions = {"python": platform.python_version(), **{package: installed(package) for package in PACKAGES}}
    write_json(args.json, {"cases": {case.name: found for case, found in results.items()}, "versions": versions})


def _measure_one(case: Case, meeting: str) -> None:
    torch.set_num_threads(case.threads)
    rank = int(os.environ["RANK"])
    if case.ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=case.ranks)
    with torch.no_grad():
        found = measure(case, rank)
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    if case.ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
