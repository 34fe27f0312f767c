"""A teacher's offload really moves its weights; a copy into the same parameters would not."""

from __future__ import annotations

import pytest
import torch

from nemo_uecr.megatron_worker.impl import (
    MEBI,
    OffloadError,
    check_released,
    mask_padded_vocabulary,
    move_plain_model,
)


def model() -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    return made.requires_grad_(requires_grad=False)


def test_every_parameter_and_buffer_moves() -> None:
    moved = model()
    move_plain_model(moved, "meta")
    assert {tensor.device.type for tensor in (*moved.parameters(), *moved.buffers())} == {"meta"}


def test_the_copy_that_nemo_rl_makes_stays_where_it_is() -> None:
    """Why the worker has a move of its own: `load_state_dict` writes into the parameters that are there."""
    kept = model()
    before = [parameter.data_ptr() for parameter in kept.parameters()]
    kept.load_state_dict({name: value.detach().clone() for name, value in kept.state_dict().items()})
    assert [parameter.data_ptr() for parameter in kept.parameters()] == before


def test_weights_survive_a_round() -> None:
    moved = model()
    before = {name: value.clone() for name, value in moved.state_dict().items()}
    move_plain_model(moved, "cpu")
    assert all(torch.equal(value, before[name]) for name, value in moved.state_dict().items())


def test_memory_that_stays_is_refused() -> None:
    check_released(164 * MEBI, 100 * MEBI, limit_mebi=64, who="the teacher")
    with pytest.raises(OffloadError, match="still holds 65 MiB on the GPU after its offload; expected at most 64 MiB"):
        check_released(165 * MEBI, 100 * MEBI, limit_mebi=64, who="the teacher")


@pytest.mark.parametrize(("first_column", "real"), [(0, 4), (4, 3), (8, 0)])
def test_padding_columns_lose_their_probability_and_gradient(first_column: int, real: int) -> None:
    """A vocabulary of 7 over shards of 4: columns 7, 8, ... are padding."""
    weight = torch.ones(1, 1, 4, requires_grad=True)
    masked = mask_padded_vocabulary(weight * 2.0, first_column, 7)
    assert masked[0, 0].isfinite().tolist() == [True] * real + [False] * (4 - real)
    masked[..., :real].sum().backward()
    assert weight.grad is not None
    assert weight.grad[0, 0].tolist() == [2.0] * real + [0.0] * (4 - real)
