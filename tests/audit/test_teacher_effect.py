"""Two ways of computing a teacher's scores, compared by hand values and on the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nemo_uecr.audit.teacher_effect import teacher_effect
from nemo_uecr.cli.main import entry_point
from nemo_uecr.core.records import ScoredBatch
from nemo_uecr.data.batch_file import save_batch
from nemo_uecr.errors import DataError

SETTINGS: dict[str, object] = {
    "alpha": 1.0, "rho": 0.5, "tau_delta": 1.0, "tau_entropy": 1.0, "std_floor": 0.0, "opd_coef": 1.0,
    "sample_std": False, "step": 0, "seed": 0,
}  # fmt: skip


def batch(teacher_logp: list[float], entropy: list[float] | None) -> ScoredBatch:
    """Two responses of two tokens, the last token of the second masked."""
    return ScoredBatch(
        task_reward_B=torch.tensor([1.0, 0.0]),
        group_B=torch.tensor([0, 0]),
        mask_BT=torch.tensor([[True, True], [True, False]]),
        old_logp_BT=torch.tensor([[-1.0, -2.0], [-1.0, -9.0]]),
        teacher_logp_BT=torch.tensor(teacher_logp).view(2, 2),
        teacher_entropy_BT=None if entropy is None else torch.tensor(entropy).view(2, 2),
    )


def gaps(one: ScoredBatch) -> Tensor:
    assert one.teacher_logp_BT is not None
    return 2 * (one.teacher_logp_BT - one.old_logp_BT)


def test_by_hand() -> None:
    """Gaps 0.5, -0.5, 1 become 0.6, 0.1, 1: differences 0.1, 0.6, 0; one of three signs turned."""
    first = batch([-0.5, -2.5, 0.0, -5.0], [1.0, 2.0, 3.0, 99.0])
    second = batch([-0.4, -1.9, 0.0, -1.0], [1.0, 1.0, 3.5, -99.0])
    gap, entropy, advantage = teacher_effect(first, second, gaps)
    assert (gap.quantity, gap.unit) == ("gap", "nats")
    assert gap.bias == pytest.approx(0.7 / 3, abs=1e-6)
    assert gap.mean == pytest.approx(0.7 / 3, abs=1e-6)
    assert gap.high == gap.largest == pytest.approx(0.6, abs=1e-6)
    assert gap.flipped == pytest.approx(1 / 3)
    # Gaps 0.5, -0.5, 1: mean 1/3, mean square 0.5; variance 0.5 - 1/9.
    assert gap.spread == pytest.approx((0.5 - 1 / 9) ** 0.5, abs=1e-6)
    # Entropy differences 0, -1, 0.5.
    assert (entropy.bias, entropy.mean) == pytest.approx((-0.5 / 3, 1.5 / 3), abs=1e-6)
    assert entropy.flipped is None
    assert advantage.largest == pytest.approx(1.2, abs=1e-6)


def test_another_batch_is_refused() -> None:
    first = batch([-0.5, -2.5, 0.0, -5.0], None)
    other = replace(first, old_logp_BT=first.old_logp_BT - 1)
    with pytest.raises(DataError, match="old_logp differs between the two; expected one batch"):
        teacher_effect(first, other, gaps)


def saved(path: Path, *, fp8: bool, seed: int = 0) -> Path:
    """A linear teacher over random hidden states, its weights rounded to FP8 or not."""
    generator = torch.Generator().manual_seed(seed)
    rows, tokens, hidden, vocabulary = 8, 20, 32, 64
    states = torch.randn(rows, tokens, hidden, generator=generator)
    weight = torch.randn(vocabulary, hidden, generator=generator) / 4
    ids = torch.randint(0, vocabulary, (rows, tokens), generator=generator)
    student = torch.log_softmax(states @ torch.randn(vocabulary, hidden, generator=generator).T / 4, -1)
    scored = torch.log_softmax(states @ (weight.to(torch.float8_e4m3fn).float() if fp8 else weight).T, -1)
    tensors = {
        "task_reward": (torch.arange(rows) % 3 == 0).float(), "group": torch.arange(rows) // 4,
        "mask": torch.ones(rows, tokens, dtype=torch.bool), "token_ids": ids,
        "old_logp": student.gather(-1, ids[..., None])[..., 0],
        "teacher_logp": scored.gather(-1, ids[..., None])[..., 0],
        "teacher_entropy": -(scored.exp() * scored).sum(-1),
    }  # fmt: skip
    save_batch(path, tensors, method="uecr", settings=SETTINGS, step=1)
    return path


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = saved(tmp_path / "bf16", fp8=False), saved(tmp_path / "fp8", fp8=True)
    assert entry_point(["teacher", "compare", str(first), str(second), "--json", str(tmp_path / "effect.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["quantity", "gap", "entropy", "advantage", "d"]
    # e4m3 keeps three bits behind the leading one: weights move by up to 1 in 16, and with them every number.
    spread, bias, mean, high, largest = map(float, lines[1].split()[2:7])
    assert 0 < abs(bias) < mean < high <= largest < spread
    assert entry_point(["teacher", "compare", str(first), str(first)]) == 0
    assert lines[1].split()[:3] == capsys.readouterr().out.splitlines()[1].split()[:3]
