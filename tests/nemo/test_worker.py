"""What a CPU cannot show of our Megatron worker, over a stand-in; the rest is in inside/workers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from nemo_uecr.nemo import megatron_worker, upstream
from nemo_uecr.nemo.megatron_worker import (
    GIB,
    MEBI,
    GpuMemoryError,
    WorkerMethods,
    mask_padding,
)
from tests.plan.live_bytes import LiveBytes


class Native:
    """NeMo-RL's worker as far as our methods touch it."""

    def __init__(self, filters: str, vocabulary: int) -> None:
        uecr = {"filters": filters, "temperature": 0.7, "vocabulary": vocabulary}
        self.cfg = {"uecr": uecr, "model_name": "tiny"}
        self.model = torch.nn.Linear(3, 4)
        self.sampling_params = "temperature and filter"


class Worker(WorkerMethods, Native):  # type: ignore[misc]
    """Ours over it."""


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron_worker, "last_stage", lambda: True)
    monkeypatch.setattr(upstream, "temperature_only", lambda temperature: f"only {temperature}")
    second = SimpleNamespace(rank=lambda: 1)
    monkeypatch.setattr(megatron_worker, "model_parallel", lambda: SimpleNamespace(tensor=second))


@pytest.mark.parametrize(("filters", "expected"), [("paper", "only 0.7"), ("recipe", "temperature and filter")])
def test_training_keeps_the_temperature_and_drops_the_filter(
    filters: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other stage than the last divides its hidden states."""
    assert Worker(filters, 8).sampling_params == expected
    monkeypatch.setattr(megatron_worker, "last_stage", lambda: False)
    assert Worker(filters, 8).sampling_params is None


def test_one_worker_of_each_data_parallel_rank_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 ranks, 2 each of tensor, context, data and pipeline in Megatron's order: 8 and 12, in the rows' order."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    state = pytest.importorskip("megatron.core.parallel_state")
    monkeypatch.undo()
    scored = {True: {"value": [1]}, False: None}
    monkeypatch.setattr(megatron_worker, "score_tokens", lambda *given: scored[megatron_worker.last_stage()])
    worker = object.__new__(WorkerMethods)
    worker.model = torch.nn.Identity()
    answering = []
    for rank in range(16):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=16)
        try:
            state.initialize_model_parallel(2, 2, context_parallel_size=2, create_gloo_process_groups=False)
            answering += [rank] if worker.score_tokens(data={}, request=None) else []  # type: ignore[arg-type]
        finally:
            state.destroy_model_parallel()
            dist.destroy_process_group()
    assert answering == [8, 12]


def test_an_offload_that_keeps_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MiB that the worker holds beside its weights from the start are none of the offload's."""
    held = 100 * MEBI
    weights = 4 * (3 * 4 + 4)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: held + weights)
    worker = Worker("paper", 8)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: held + 64 * MEBI)
    worker.assert_offloaded(limit_mebi=64)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: held + 65 * MEBI)
    with pytest.raises(GpuMemoryError, match="the model tiny still holds 65 MiB on the GPU after its offload"):
        worker.assert_offloaded(limit_mebi=64)


def test_what_the_device_says_is_free_decides_whether_vllm_may_wake_and_has_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0.6 of 80 GiB is 48: the student's 8 leave in time, what other processes hold does not."""
    worker = Worker("paper", 8)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 8 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (40 * GIB, 80 * GIB))
    worker.assert_room(share=0.6, waking=True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(39.5 * GIB), 80 * GIB))
    with pytest.raises(
        GpuMemoryError,
        match=r"take 48.0 GiB .*has 47.5 GiB for it; take policy.generation.vllm_cfg.gpu_memory_utilization=0.59",
    ):
        worker.assert_room(share=0.6, waking=True)
    with pytest.raises(GpuMemoryError, match=r"put to sleep .* given back 48.0 GiB .* vLLM's log, or end what else"):
        worker.assert_room(share=0.6, waking=False)


def test_masking_the_padding_costs_no_second_gradient() -> None:
    """Logits and their gradient: 2. A write that autograd sees adds a clone of the gradient: 3."""
    hidden, weight = torch.randn(64, 4), torch.randn(4, 512).requires_grad_()
    with LiveBytes(hidden, weight) as live:
        logits = mask_padding(hidden @ weight, 0, 509)
        size = logits.nbytes
        logits.exp_().sum().backward()
    assert live.peak < 2.2 * size
    assert float(weight.grad[:, 509:].abs().max()) == 0 < float(weight.grad[:, :509].abs().min())
