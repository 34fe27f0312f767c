"""Time and memory of the UECR advantage, beside the plain padded form. One thread, one process a case.

python -m benchmarks.advantage --json advantage.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import MEBI, least_seconds, outputs_of, peak_extra
from nemo_uecr.cli.common import write_json
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import GAP_CLIP, ScoredBatch, Settings

SETTINGS = Settings(alpha=1.0, rho=0.5, tau_delta=1.0, tau_entropy=1.0, std_floor=0.0, sample_std=False)
GROUP = 8


def made_batch(responses: int, tokens: int, mean_length: int) -> ScoredBatch:
    """A batch of random scores with response lengths between 1 and about twice the mean."""
    generator = torch.Generator().manual_seed(0)
    length_B = torch.randint(1, min(tokens, 2 * mean_length) + 1, (responses,), generator=generator)
    old_BT = -torch.rand(responses, tokens, generator=generator)
    return ScoredBatch(
        task_reward_B=(torch.rand(responses, generator=generator) < 0.4).float(),
        group_B=torch.arange(responses) // GROUP,
        mask_BT=torch.arange(tokens).unsqueeze(0) < length_B.unsqueeze(1),
        old_logp_BT=old_BT,
        teacher_logp_BT=old_BT - torch.rand(responses, tokens, generator=generator) * 0.3,
        teacher_entropy_BT=torch.rand(responses, tokens, generator=generator) * 2,
    )


def blocked(batch: ScoredBatch) -> Tensor:
    """The package's own computation."""
    return METHODS["uecr"].compute(batch, SETTINGS).advantage_BT


def plain(batch: ScoredBatch) -> Tensor:
    """UECR as one writes it first: whole padded tensors, float32, equal groups side by side."""
    teacher, entropy = batch.teacher_logp_BT, batch.teacher_entropy_BT
    assert teacher is not None
    assert entropy is not None
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
    batch, compute = made_batch(responses, tokens, mean_length), CASES[case]
    compute(made_batch(GROUP, 64, 32))  # loads and warms what is loaded lazily
    output, peak = peak_extra(lambda: compute(batch), device="cpu")
    mean = float(batch.mask_BT.sum() / responses)
    found = {"peak_mb": peak / MEBI, "peak_per_output": peak / output.nbytes, "mean_length": mean}
    return found | least_seconds(lambda: compute(batch), repeats)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--responses", type=int, default=1008, help=f"B, a multiple of {GROUP}")
    parser.add_argument("--tokens", type=int, default=16384, help="T, padded")
    parser.add_argument("--mean-length", type=int, default=5400, help="mean response length")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs a case; the least counts")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        size = args.responses, args.tokens, args.mean_length, args.repeats
        sys.stdout.write(json.dumps(measure(args.case, *size)) + "\n")
        return
    cases = {}
    for case in CASES:
        (output,) = outputs_of("benchmarks.advantage", [*sys.argv[1:], "--case", case], threads=1)
        cases[case] = found = json.loads(output)
        sys.stdout.write(
            f"[{args.responses} x {args.tokens}] {case:<8} {found['cpu_s']:.3f} s CPU  {found['wall_s']:.3f} s wall  "
            f"{found['peak_mb']:.0f} MiB extra ({found['peak_per_output']:.2f} x output)\n"
        )
    write_json(args.json, {"shape": [args.responses, args.tokens], "cases": cases, "torch": torch.__version__})


if __name__ == "__main__":
    main()
