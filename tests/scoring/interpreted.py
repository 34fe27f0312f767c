"""What only Triton's kernels have; `test_triton.py` runs it in the interpreter beside the tests of all reductions."""

from __future__ import annotations

import pytest
import torch

from nemo_uecr.scoring.records import MAX_ROW, TARGET_ROW, StatisticsLayout
from nemo_uecr.scoring.reduce import reduce_logits, triton_serves
from nemo_uecr.scoring.statistics import _finish
from nemo_uecr.scoring.triton_kernels import FINISH_TOKENS, finish_with_triton, write_gradient_with_triton
from tests.scoring.made import float64_gradient, peaked_logits
from tests.scoring.test_dense import ASKED

BOTH = StatisticsLayout((1.0, 0.7), True)


def test_the_kernels_serve_here() -> None:
    assert triton_serves(torch.zeros(1))


def test_a_masked_shard_adds_exactly_nothing() -> None:
    logits, target = peaked_logits(4, 4196, 9.0, seed=3)
    own = reduce_logits(logits, target, BOTH, 0)
    masked = reduce_logits(torch.full((4, 4101), -torch.inf), target, BOTH, 4196)
    assert torch.equal(masked, torch.tensor([-torch.inf, -torch.inf, 0.0, 0.0, 0.0]).unsqueeze(1).expand(-1, 4))
    logp, both, entropy, other = torch.empty(2, 4), torch.empty(2, 4), torch.empty(4), torch.empty(4)
    finish_with_triton(own.unsqueeze(0), BOTH, logp, entropy)
    _, sound = finish_with_triton(torch.stack([masked, own, masked]), BOTH, both, other)
    assert sound.all()
    assert torch.equal(logp, both)
    assert torch.equal(entropy, other)


@pytest.mark.parametrize("asked", ASKED)
def test_scores_from_statistics_are_those_of_plain_torch(asked: tuple[tuple[float, ...], bool]) -> None:
    """More tokens than one program takes; some with numbers that are not finite, each in another statistic."""
    layout, tokens = StatisticsLayout(*asked), FINISH_TOKENS + 9
    stats = torch.rand(3, layout.width, tokens, generator=torch.Generator().manual_seed(7)) + 0.5
    stats[:, TARGET_ROW] -= 2.0
    for row in range(layout.width):
        stats[1, row, 2 * row], stats[2, row, FINISH_TOKENS + row] = torch.inf, torch.nan
    stats[:, MAX_ROW, 100] = -torch.inf
    found = [torch.empty(len(asked[0]), tokens) for _ in range(2)]
    entropy = [torch.empty(tokens) if asked[1] else None for _ in range(2)]
    merged, sound = finish_with_triton(stats, layout, found[0], entropy[0])
    expected, same = _finish(stats, layout, found[1], entropy[1])
    assert torch.equal(sound, same)
    assert 0 < int((~sound).sum()) <= 2 * layout.width + 1
    torch.testing.assert_close(merged[:, sound], expected[:, sound], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[0][:, sound], found[1][:, sound], rtol=1e-6, atol=1e-6)
    if asked[1]:
        torch.testing.assert_close(entropy[0][sound], entropy[1][sound], rtol=1e-6, atol=1e-6)


def test_gradient_of_a_shard() -> None:
    """The target of the first row stands on another shard; the columns begin at 40."""
    logits, target = peaked_logits(5, 100, 9.0, seed=6)
    target[0], target[1] = 12, 99
    weight = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    layout = StatisticsLayout((0.7,), False)
    merged, _ = finish_with_triton(
        reduce_logits(logits, target, layout, 0).unsqueeze(0), layout, torch.empty(1, 5), None
    )
    gradient = torch.full((5, 60), torch.nan)
    write_gradient_with_triton(logits[:, 40:], target - 40, merged, layout, weight, gradient)
    assert (gradient - float64_gradient(logits, target, 0.7, weight)[:, 40:]).abs().max() <= 1e-6
