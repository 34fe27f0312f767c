"""Fixtures of the scoring tests: each reduction, and work on several gloo ranks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nemo_uecr.scoring import native
from nemo_uecr.scoring.reduce import INTERPRETED

GLOO_TIMEOUT_S = 60.0
"""Far beyond what a call takes, however busy the machine is."""


GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


@pytest.fixture(params=["triton"] if INTERPRETED else ["native", "torch", GPU])
def reduction(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test once with each reduction; on a GPU the default device is the GPU."""
    if request.param == "torch":
        monkeypatch.setattr(native, "kernel", lambda: None)
    elif request.param == "native" and native.kernel() is None:
        pytest.skip("no native reduction here: needs a C compiler and AVX2")
    elif request.param == "cuda":
        torch.set_default_device("cuda")
        freed = [torch.full((2**size,), torch.nan) for size in range(8, 28)]  # what is not written would be seen
        torch.cuda.synchronize()
        del freed
    yield str(request.param)
    torch.set_default_device("cpu")


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
