"""A teacher's offload really moves its weights; a copy into the same parameters would not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from nemo_uecr.nemo.impl import host_copy, mask_padded_vocabulary, move_frozen_model
from tests.plan.live_bytes import LiveBytes


def model() -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    return made.requires_grad_(requires_grad=False)


class CountsCopies(TorchFunctionMode):
    """The CPU plays host and GPU: a tensor is on the side where it was put, and each move to the other is a copy."""

    def __init__(self, on_gpu: torch.nn.Module) -> None:
        super().__init__()
        self.gpu = {tensor.data_ptr(): tensor.data for tensor in (*on_gpu.parameters(), *on_gpu.buffers())}
        self.moves: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to:
            return self._moved(args[0], str(args[1]))
        if func is torch.Tensor.copy_:
            self.moves["off"] += args[1].data_ptr() in self.gpu
        return func(*args, **(kwargs or {}))

    def _moved(self, tensor: torch.Tensor, device: str) -> torch.Tensor:
        if (tensor.data_ptr() in self.gpu) == (device == "cuda"):
            return tensor
        self.moves["on" if device == "cuda" else "off"] += 1
        made = tensor.clone()
        if device == "cuda":
            self.gpu[made.data_ptr()] = made  # held, so that no address is used twice
        return made


def test_weights_are_copied_to_the_host_once_and_only_travel_to_the_gpu() -> None:
    moved = model()
    weights = len(list(moved.parameters()))
    buffers = len(list(moved.buffers()))
    before = {name: value.clone() for name, value in moved.state_dict().items()}
    with CountsCopies(moved) as copies:
        host = host_copy(moved)
        assert copies.moves == {"off": weights}
        for turn in range(1, 4):
            move_frozen_model(moved, "cpu", host)
            assert not {tensor.data_ptr() for tensor in (*moved.parameters(), *moved.buffers())} & copies.gpu.keys()
            assert [parameter.data_ptr() for parameter in moved.parameters()] == [one.data_ptr() for one in host]
            move_frozen_model(moved, "cuda", host)
            assert {tensor.data_ptr() for tensor in (*moved.parameters(), *moved.buffers())} <= copies.gpu.keys()
            assert copies.moves == {"off": weights + turn * buffers, "on": turn * (weights + buffers)}
    assert all(torch.equal(value, before[name]) for name, value in moved.state_dict().items())


@pytest.mark.parametrize(("first_column", "real"), [(0, 4), (4, 3), (8, 0)])
def test_padding_columns_lose_their_probability_and_gradient(first_column: int, real: int) -> None:
    """A vocabulary of 7 over shards of 4: columns 7, 8, ... are padding."""
    weight = torch.ones(1, 1, 4, requires_grad=True)
    masked = mask_padded_vocabulary(weight * 2.0, first_column, 7)
    assert masked[0, 0].isfinite().tolist() == [True] * real + [False] * (4 - real)
    masked[..., :real].sum().backward()
    assert weight.grad is not None
    assert weight.grad[0, 0].tolist() == [2.0] * real + [0.0] * (4 - real)


class LogSumExp(torch.autograd.Function):
    """Keeps the logits and makes their gradient row by row, as a chunked loss does."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        total = torch.stack([row.exp().sum() for row in logits])
        ctx.save_for_backward(logits, total)
        return total.log()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        logits, total = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for row in range(logits.shape[0]):
            gradient[row] = logits[row].exp() / total[row] * grad[row]
        return gradient


def test_masking_the_padding_costs_no_second_gradient() -> None:
    """Logits and their gradient: 2. A write that autograd sees adds a clone of the gradient: 3."""
    hidden, weight = torch.randn(64, 4), torch.randn(4, 512).requires_grad_()
    with LiveBytes(hidden, weight) as live:
        logits = mask_padded_vocabulary(hidden @ weight, 0, 509)
        size = logits.nbytes
        LogSumExp.apply(logits).mean().backward()
    assert live.peak < 2.2 * size
    assert weight.grad is not None
    assert float(weight.grad[:, 509:].abs().max()) == 0 < float(weight.grad[:, :509].abs().min())
