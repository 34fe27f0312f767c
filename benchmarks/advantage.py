"""Time and memory of UECR's advantage: seconds on one thread, and MiB in addition to the batch.

python -m benchmarks.advantage --json advantage.json
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import MEBI, least_seconds, peak_extra
from nemo_uecr.cli.common import write_json
from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods.uecr import Uecr
from nemo_uecr.core.record import ScoredBatch

UECR = Uecr(alpha=1.0, rho=0.5, tau_delta=1.0, tau_entropy=1.0)
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


def measure(responses: int, tokens: int, mean_length: int, repeats: int) -> dict[str, float]:
    """Least CPU and wall seconds of ``repeats`` runs, and the peak memory that the first run added."""
    torch.set_num_threads(1)
    compute(UECR, made_batch(GROUP, 64, 32))  # warm-up
    batch = made_batch(responses, tokens, mean_length)

    def run() -> Tensor:
        return compute(UECR, replace(batch)).advantage_BT  # a record of its own, which is checked and masked

    output, peak = peak_extra(run, device="cpu")
    mean = float(batch.mask_BT.sum() / responses)
    found = {"peak_mb": peak / MEBI, "peak_per_output": peak / output.nbytes, "mean_length": mean}
    return found | least_seconds(run, repeats)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--responses", type=int, default=1008, help=f"B, a multiple of {GROUP}")
    parser.add_argument("--tokens", type=int, default=16384, help="T, padded")
    parser.add_argument("--mean-length", type=int, default=5400, help="mean response length")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs; the least counts")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    args = parser.parse_args()
    found = measure(args.responses, args.tokens, args.mean_length, args.repeats)
    sys.stdout.write(
        f"[{args.responses} x {args.tokens}] {found['cpu_s']:.3f} s CPU  {found['wall_s']:.3f} s wall  "
        f"{found['peak_mb']:.0f} MiB extra ({found['peak_per_output']:.2f} x output)\n"
    )
    write_json(args.json, {"shape": [args.responses, args.tokens], **found, "torch": torch.__version__})


if __name__ == "__main__":
    main()
