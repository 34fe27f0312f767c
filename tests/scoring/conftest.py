"""Fixtures of the scoring tests: reference scores in float64, and work on several gloo ranks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.scoring import native

QWEN3_VOCAB = 151_936
GLOO_TIMEOUT_S = 60.0
"""Far beyond what a call takes, however busy the machine is."""


def float64_scores(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy in float64, straight from the definition."""
    log_p = torch.log_softmax(logits.double() / temperature, -1)
    entropy = -torch.special.xlogy(log_p.exp(), log_p.exp()).sum(-1)
    return log_p.gather(1, target.unsqueeze(1)).squeeze(1), entropy


def peaked_logits(tokens: int, vocab: int, log_z: float, seed: int) -> tuple[Tensor, Tensor]:
    """Logits with a few likely tokens over a noisy floor, moved to the given log-partition, and targets."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, vocab, generator=generator) * 2.0
    likely = torch.randint(0, vocab, (tokens, min(8, vocab)), generator=generator)
    bump = torch.rand(likely.shape, generator=generator) * 6.0 + 8.0
    logits.scatter_(1, likely, bump)
    logits += (log_z - torch.logsumexp(logits.double(), 1, keepdim=True)).float()
    pick = torch.randint(0, vocab, (tokens,), generator=generator)
    target = torch.where(torch.arange(tokens) % 2 == 0, likely[:, 0], pick)
    return logits, target


@pytest.fixture(params=["native", "torch"])
def reduction(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test once with each CPU reduction."""
    if request.param == "torch":
        monkeypatch.setattr(native, "kernel", lambda: None)
    elif native.kernel() is None:
        pytest.skip("no native reduction here: needs a C compiler and AVX2")
    return str(request.param)


def _rank_main(rank: int, size: int, meeting: Path, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=GLOO_TIMEOUT_S)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timeout)
    result = work(rank, size, *arguments)
    dist.barrier()
    dist.destroy_process_group()
    return result


@pytest.fixture
def on_ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """What `work(rank, size, *arguments)` returns on that many forked gloo ranks; an error of a rank is raised here."""

    def run(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        meeting = tmp_path / f"meeting-{len(list(tmp_path.iterdir()))}"
        with ProcessPoolExecutor(size, mp_context=multiprocessing.get_context("fork")) as pool:
            ranks = [pool.submit(_rank_main, rank, size, meeting, work, arguments) for rank in range(size)]
            return [rank.result(timeout=3 * GLOO_TIMEOUT_S) for rank in ranks]

    return run
