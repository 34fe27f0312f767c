"""Time and memory of the UECR advantage over a large batch, beside the plain padded form.

Run as ``python -m nemo_uecr.bench.advantage CASE B T MEAN REPEATS``; prints one JSON line. One process a case, so that
the peak memory is the case's own. Shape legend: B = responses, T = tokens.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from nemo_uecr.bench.memory import peak_resident, reset_peak
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import GAP_CLIP, ScoredBatch, Settings

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


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    sys.stdout.write(json.dumps(measure(name, *(int(number) for number in numbers))) + "\n")
