"""Fixtures of the scoring tests: reference scores in float64, and work on several gloo ranks."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.scoring import native

QWEN3_VOCAB = 151_936
DIES_ON_PURPOSE = 77
"""The exit code of a rank whose death is what a test is about."""
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
        monkeypatch.setattr(native, "_library", lambda: None)
    elif native._library() is None:
        pytest.skip("no native reduction here: needs a C compiler and AVX2")
    return str(request.param)


@dataclass(frozen=True)
class RankResult:
    """What one rank's work returned, or the error it raised."""

    value: Any
    error: str | None
    message: str


def _rank_main(pipe: Connection, rank: int, size: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=GLOO_TIMEOUT_S)
    store = dist.TCPStore("127.0.0.1", pipe.recv(), is_master=False, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        result = RankResult(work(rank, size, *arguments), None, "")
    except Exception as error:  # noqa: BLE001 (reported to the parent, which decides)
        result = RankResult(None, type(error).__name__, f"{error}\n{traceback.format_exc()}")
    pipe.send_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture
def on_ranks() -> Callable[..., list[RankResult]]:
    """Run `work(rank, size, *arguments)` on that many forked gloo ranks; a hang fails the test."""

    def run(size: int, work: Callable[..., Any], *arguments: Any) -> list[RankResult]:
        context = multiprocessing.get_context("fork")
        pipes, processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank_main, args=(theirs, rank, size, work, arguments))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        # Hosted here, so that no other program can take the port, and no rank that ends takes the store with it. After
        # the forks: the store's thread names who connects, and a child forked then inherits the resolver's lock, taken.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        try:
            for pipe in pipes:
                pipe.send(store.port)
            results = []
            for rank, pipe in enumerate(pipes):
                if not pipe.poll(3 * GLOO_TIMEOUT_S):
                    pytest.fail(f"rank {rank} hangs")
                try:
                    results.append(pickle.loads(pipe.recv_bytes()))
                except EOFError:
                    processes[rank].join(5)
                    if processes[rank].exitcode == DIES_ON_PURPOSE:
                        results.append(RankResult(None, "died", ""))
                        continue
                    pytest.fail(f"rank {rank} died, exit code {processes[rank].exitcode}")
            return results
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()

    return run
