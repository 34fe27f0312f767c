"""A saved batch gives back the record that was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import RunState
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.data.batch_file import (
    OPTIONAL,
    REQUIRED,
    SavedBatch,
    arithmetic,
    load_batch,
    recompute,
    save_batch,
    scored_batch,
)
from nemo_uecr.errors import DataError, ScoreError

PADDED = ScoredBatch(
    task_reward_B=torch.tensor([1.0, 0.0]),
    group_B=torch.tensor([0, 0]),
    mask_BT=torch.tensor([[True, True], [True, False]]),
    old_logp_BT=torch.tensor([[-0.5, -1.0], [-2.0, 0.0]]),
    teacher_logp_BT=torch.tensor([[-0.25, -1.5], [-1.0, 0.0]]),
    teacher_entropy_BT=torch.tensor([[0.5, 0.75], [1.0, 0.0]]),
    initial_logp_BT=torch.tensor([[-0.75, -1.25], [-2.5, 0.0]]),
    segments_BT=torch.tensor([[0, 1], [0, 0]]),
)
#: The record's tensors by their public names.
TENSORS: dict[str, Any] = {
    name: tensor for name, field in (REQUIRED | OPTIONAL).items() if (tensor := getattr(PADDED, field)) is not None
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_batch(tmp_path / "batch.safetensors", TENSORS, method=Grpo(), run=RunState(), step=1)
    return tmp_path / "batch.safetensors"


def test_every_tensor_comes_back(path: Path) -> None:
    read = vars(scored_batch(load_batch(path), path))
    for name, value in vars(PADDED).items():
        same = torch.equal(read[name], value) if isinstance(value, torch.Tensor) else read[name] == value
        assert same, name


def test_a_mask_of_numbers_is_a_mask() -> None:
    read = scored_batch(SavedBatch(TENSORS | {"mask": PADDED.mask_BT.float()}, {}), Path("b.safetensors"))
    assert torch.equal(read.mask_BT, PADDED.mask_BT)
    additive = PADDED.mask_BT.float().log().clamp(min=-1e9)
    with pytest.raises(ScoreError, match=r"b\.safetensors: mask has values from -1000000000 to 0"):
        scored_batch(SavedBatch(TENSORS | {"mask": additive}, {}), Path("b.safetensors"))


def test_a_file_cut_short_is_one_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="cannot be read as a saved batch"):
        load_batch(path)


@pytest.mark.parametrize(
    ("by", "kind", "holds"),
    [(0.0, None, True), (3e-7, None, False), (3e-7, "another machine", True), (1e-5, "another machine", False)],
)
def test_a_changed_advantage_is_seen(path: Path, by: float, kind: str | None, holds: bool) -> None:
    """Bit for bit with the run's own arithmetic, 1e-6 elsewhere."""
    advantage = compute(Grpo(), PADDED).advantage_BT.clone()
    advantage[0, 0] += by
    tensors = TENSORS | {"advantage": advantage}
    save_batch(path, tensors, method=Grpo(), run=RunState(), step=1, arithmetic=kind or arithmetic())
    assert recompute(path).holds is holds


def test_a_step_without_advantages_is_not_compared(path: Path) -> None:
    with pytest.raises(DataError, match="no saved advantages"):
        recompute(path)
