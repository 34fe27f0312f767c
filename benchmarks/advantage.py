"""Time and memory of the UECR advantage, beside the plain padded form. One thread, one process a case.

python -m benchmarks.advantage --json advantage.json
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.child import output_of
from benchmarks.memory import peak_resident, reset_peak
from nemo_uecr.cli.common import write_json
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import GAP_CLIP, ScoredBatch, Settings
from nemo_uecr.errors import UecrError

SETTINGS = Settings(alpha=1.0, rho=0.5, tau_delta=1.0, tau_entropy=1.0, std_floor=0.0, sample_std=False)
GROUP = 8
MEBI = 1_048_576


def made_batch(responses: int, tokens: int, mean_length: int) -> ScoredBatch:
    """A batch of random scores with response lengths between 1 and about twice the mean."""
    generator = torch.Generator().manual_seed(0)
    longest = min(tokens, 2 * mean_length)
    length_B = torch.randint(1, longest + 1, (responses,), generator=generator)
    old_BT = -torch.rand(responses, tokens, generator=generator)
    return ScoredBatch(
        task_reward_B=(torch.rand(responses, generator=generator) < 0.4).float(),
        group_B=torch.arange(responses) // GROUP,
        mask_BT=torch.arange(tokens).unsqueeze(0) < length_B.unsqueeze(1),
        old_logp_BT=old_BT,
        teacher_logp_BT=old_BT + torch.randn(responses, tokens, generator=generator) * 0.3,
        teacher_entropy_BT=torch.rand(responses, tokens, generator=generator) * 2,
    )


def blocked(batch: ScoredBatch) -> Tensor:
    """The package's own computation."""
    return METHODS["uecr"].compute(batch, SETTINGS).advantage_BT


def plain(batch: ScoredBatch) -> Tensor:
    """UECR as one writes it first: whole padded tensors, float32, equal groups side by side."""
    teacher, entropy = batch.teacher_logp_BT, batch.teacher_entropy_BT
    if teacher is None or entropy is None:
        raise RuntimeError("the made batch carries teacher scores")
    m = batch.mask_BT.float()
    delta = (teacher - batch.old_logp_BT) * m
    reward = (delta.clamp(-GAP_CLIP, GAP_CLIP) * m).sum(1) / m.sum(1)
    task = batch.task_reward_B.view(-1, GROUP)
    unified = task + reward.view(-1, GROUP)
    scale = unified.std(1, correction=0, keepdim=True) + 1e-6
    advantage = ((unified - unified.mean(1, keepdim=True)) / scale).flatten().unsqueeze(1)
    task_advantage = ((task - task.mean(1, keepdim=True)) / scale).flatten().unsqueeze(1)
    d = torch.tanh(task_advantage.sign() * delta / 2.0)
    c = torch.exp(-entropy) * m
    q = 0.5 * c * (d - (c * d).sum(1, keepdim=True) / c.sum(1, keepdim=True))
    return (advantage + 0.5 * task_advantage * q) * m


CASES: dict[str, Callable[[ScoredBatch], Tensor]] = {"blocked": blocked, "plain": plain}


def measure(case: str, responses: int, tokens: int, mean_length: int, repeats: int) -> dict[str, float]:
    """Least CPU and wall seconds of ``repeats`` runs, and the peak memory that the first run added."""
    torch.set_num_threads(1)
    batch = made_batch(responses, tokens, mean_length)
    compute = CASES[case]
    compute(made_batch(GROUP, 64, 32))  # loads and warms what is loaded lazily
    before = reset_peak()
    compute(batch)
    peak = peak_resident() - before
    cpu, wall = [], []
    for _ in range(repeats):
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        compute(batch)
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    output = responses * tokens * 4
    return {
        "cpu_s": min(cpu),
        "wall_s": min(wall),
        "peak_extra_mb": peak / MEBI,
        "peak_extra_per_output": peak / output,
        "mean_length": float(batch.mask_BT.sum() / responses),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--responses", type=int, default=1008, help="B (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=16384, help="T, padded (default: %(default)s)")
    parser.add_argument("--mean-length", type=int, default=5400, help="mean response length (default: %(default)s)")
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs a case; the least counts (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    parser.add_argument("--case", choices=list(CASES), help="measure this one here and print its figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Measure."""
    if args.responses < 8 or args.responses % 8 or min(args.tokens, args.mean_length, args.repeats) < 1:
        raise UecrError("--responses must be a multiple of 8 and the other numbers at least 1")
    size = (args.responses, args.tokens, args.mean_length, args.repeats)
    if args.case is not None:
        sys.stdout.write(json.dumps(measure(args.case, *size)) + "\n")
        return 0
    names = ("--responses", "--tokens", "--mean-length", "--repeats")
    words = [word for name, number in zip(names, size, strict=True) for word in (name, str(number))]
    found = {case: json.loads(output_of("benchmarks.advantage", ["--case", case, *words], threads=1)) for case in CASES}
    ours, plain = found["blocked"], found["plain"]
    result = {
        "shape": [args.responses, args.tokens],
        "mean_length": ours["mean_length"],
        "cases": found,
        "ratios": {
            "plain_cpu": plain["cpu_s"] / ours["cpu_s"],
            "plain_memory": plain["peak_extra_mb"] / ours["peak_extra_mb"] if ours["peak_extra_mb"] else None,
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    sys.stdout.write(
        f"[{args.responses} x {args.tokens}] advantages, mean length {ours['mean_length']:.0f}, one thread\n"
    )
    for case, figures in found.items():
        sys.stdout.write(
            f"{case:<8} {figures['cpu_s']:.3f} s CPU  {figures['wall_s']:.3f} s wall  "
            f"{figures['peak_extra_mb']:.0f} MiB extra ({figures['peak_extra_per_output']:.2f} x output)\n"
        )
    write_json(args.json, result)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    sys.exit(run(parser.parse_intermixed_args()))
