"""A saved step gives back the record that was saved, bit for bit, and its advantages again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import RunState
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import CheckpointError, DataError
from nemo_uecr.responses.replay import arithmetic, recompute, scored_batch
from nemo_uecr.responses.table import read_responses
from tests.responses.tables import write_step

PADDED = ScoredBatch(
    task_reward_B=torch.tensor([1.0, 0.0]),
    group_B=torch.tensor([0, 0]),
    mask_BT=torch.tensor([[True, True, True, False], [True, False, False, False]]),
    old_logp_BT=torch.tensor([[-0.5, -1.0, -0.1, 0.0], [-2.0, 0.0, 0.0, 0.0]]),
    teacher_logp_BT=torch.tensor([[-0.25, -1.5, -0.3, 0.0], [-1.0, 0.0, 0.0, 0.0]]),
    teacher_entropy_BT=torch.tensor([[0.5, 0.75, 1e-7, 0.0], [1.0, 0.0, 0.0, 0.0]]),
    initial_logp_BT=torch.tensor([[-0.75, -1.25, -0.2, 0.0], [-2.5, 0.0, 0.0, 0.0]]),
    segments_BT=torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0]]),
    run=RunState(step=3, total_steps=9, seed=2, state={"seen": 1 / 3}),
)
COLUMNS: dict[str, Any] = {
    "reward": PADDED.task_reward_B, "group": PADDED.group_B, "sampled": PADDED.mask_BT, "turn": PADDED.segments_BT,
    "old_logp": PADDED.old_logp_BT, "teacher_logp": PADDED.teacher_logp_BT, "initial_logp": PADDED.initial_logp_BT,
    "teacher_entropy": PADDED.teacher_entropy_BT,
}  # fmt: skip


@pytest.mark.parametrize("holes", [False, True])
def test_every_tensor_comes_back(tmp_path: Path, holes: bool) -> None:
    """Padding as wide as it was, every bit, and what the run state holds; also with an observed token inside."""
    mask_BT = PADDED.mask_BT & (torch.arange(4) != 1) if holes else PADDED.mask_BT
    scores = {name: value for name, value in COLUMNS.items() if name not in ("reward", "group")}
    columns = COLUMNS | {name: value.masked_fill(~mask_BT, 0) for name, value in scores.items()}
    read = scored_batch(read_responses(write_step(tmp_path / "b.parquet", columns, Grpo(), run=PADDED.run)))
    for name, column in {"mask_BT": "sampled", "segments_BT": "turn", "task_reward_B": "reward"}.items():
        assert torch.equal(getattr(read, name), columns[column])
    for name in ("old_logp", "teacher_logp", "teacher_entropy", "initial_logp"):
        found_BT = getattr(read, f"{name}_BT")
        assert found_BT.dtype == torch.float32
        assert torch.equal(found_BT.view(torch.int32), columns[name].view(torch.int32)), name
    assert read.run == PADDED.run


@pytest.mark.parametrize(
    ("by", "kind", "holds"),
    [(0.0, None, True), (3e-7, None, False), (3e-7, "another machine", True), (1e-5, "another machine", False)],
)
def test_a_changed_advantage_is_seen(tmp_path: Path, by: float, kind: str | None, holds: bool) -> None:
    """Bit for bit with the run's own arithmetic, 1e-6 elsewhere."""
    advantage = compute(Grpo(), PADDED).advantage_BT.clone()
    advantage[0, 0] += by
    columns = COLUMNS | {"advantage": advantage}
    path = write_step(tmp_path / "b.parquet", columns, Grpo(), run=PADDED.run, arithmetic=kind or arithmetic())
    assert recompute(path).holds is holds


def test_a_step_without_advantages_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no saved advantages"):
        recompute(write_step(tmp_path / "b.parquet", COLUMNS, Grpo()))


def test_a_step_of_another_equation_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = COLUMNS | {"advantage": compute(Grpo(), PADDED).advantage_BT}
    path = write_step(tmp_path / "b.parquet", columns, Grpo(), run=PADDED.run, arithmetic=arithmetic())
    monkeypatch.setattr(Grpo, "revision", 2)
    with pytest.raises(CheckpointError, match=r"b\.parquet was made by revision 1 of grpo, whose equation has changed"):
        recompute(path)
