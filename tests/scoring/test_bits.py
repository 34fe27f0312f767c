"""Training and scoring agree in every bit, whatever stands beside a row and however it lies in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nemo_uecr.scoring.dense import SMALLEST_RUN, token_logp, token_scores
from tests.scoring.made import QWEN3_VOCAB, float64_scores, peaked_logits, seeded

pytestmark = pytest.mark.usefixtures("reduction")

# With 1.0 as many sums as the native kernel takes.
MANY = (0.7, 0.3, 0.5, 0.9, 1.3, 2.0, 5.0)


def test_the_other_temperatures_change_no_bit() -> None:
    logits, target = peaked_logits(5, 9001, 15.0, seed=1)
    whole = token_scores(logits, target, temperatures=MANY, entropy=True)
    for temperature in MANY:
        assert torch.equal(token_logp(logits, target, temperature=temperature), whole.at(temperature)), temperature
    alone = token_scores(logits, target, temperatures=(), entropy=True)
    assert torch.equal(alone.entropy, whole.entropy)


@pytest.mark.parametrize("temperatures", [MANY, (*MANY, 5e-4, 80.0)], ids=["native", "beyond it"])
def test_many_temperatures_are_all_right(temperatures: tuple[float, ...]) -> None:
    logits, target = peaked_logits(4, 500, 9.0, seed=2)
    scores = token_scores(logits, target, temperatures=temperatures, entropy=True)
    for temperature in temperatures:
        logp, entropy = float64_scores(logits, target, temperature)
        assert (scores.at(temperature) - logp).abs().max() <= 2e-6 * max(1.0, float(logp.abs().max())), temperature
    _, entropy = float64_scores(logits, target, 1.0)
    assert (scores.entropy - entropy).abs().max() <= 5e-6


def views(logits: Tensor) -> dict[str, Tensor]:
    """The same logits, lying in memory in other ways."""
    wide = torch.cat([logits, logits], 1)
    spread = torch.empty(logits.shape[0], 2 * logits.shape[1], dtype=logits.dtype)
    spread[:, ::2] = logits
    return {
        "transposed": logits.T.contiguous().T,
        "left half": wide[:, : logits.shape[1]],
        "off by one": torch.cat([logits[:, :1], logits], 1)[:, 1:],
        "every second": spread[:, ::2],
    }


@pytest.mark.parametrize(("tokens", "vocab", "dtype"), [(3, 100_003, torch.bfloat16), (700, 61, torch.float32)])
def test_strides_change_no_bit(tokens: int, vocab: int, dtype: torch.dtype) -> None:
    logits, target = peaked_logits(tokens, vocab, 15.0, seed=3)
    logits = logits.to(dtype)
    whole = token_scores(logits, target, temperatures=(1.0, 0.7), entropy=True)
    for name, view in views(logits).items():
        scores = token_scores(view, target, temperatures=(1.0, 0.7), entropy=True)
        assert torch.equal(scores.logp, whole.logp), name
        assert torch.equal(scores.entropy, whole.entropy), name
        assert torch.equal(token_logp(view, target, temperature=0.7), whole.at(0.7)), name


@pytest.mark.parametrize("lengths", [(40, 40, 40), (40, 17, 0), (1, 0, 2)])
@pytest.mark.parametrize(
    "view",
    [
        lambda whole: whole[:, 3:-1],
        lambda whole: whole[:, 3:-1, :50],
        lambda whole: whole.transpose(0, 1).contiguous().transpose(0, 1)[:, 3:-1],
        lambda whole: whole[:1, 3:-1].expand(3, -1, -1),
        lambda whole: torch.stack([whole, whole], dim=1)[:, 1, 3:-1],
    ],
    ids=["responses", "columns", "time first", "expanded", "stacked"],
)
@pytest.mark.parametrize("smallest", [1, SMALLEST_RUN])
def test_a_slice_of_the_batch_equals_its_copy(
    view: Callable[[Tensor], Tensor], lengths: tuple[int, ...], smallest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nemo_uecr.scoring.dense.SMALLEST_RUN", smallest)
    whole = torch.randn(3, 44, 61, generator=seeded(6)) * 9
    mask = torch.arange(40) < torch.tensor(lengths).unsqueeze(1)
    tokens = torch.randint(0, 50, (3, 40), generator=seeded(7))
    whole[:, :3] = torch.nan  # a prompt is never read
    leaf, copied = whole.clone().requires_grad_(), view(whole).clone()
    chosen = copied[mask].requires_grad_()
    expected = token_scores(chosen, tokens[mask], temperatures=(1.0, 0.7), entropy=True)
    found = token_scores(view(leaf), tokens, mask, temperatures=(1.0, 0.7), entropy=True)
    assert torch.equal(found.logp[:, mask], expected.logp)
    assert torch.equal(found.entropy[mask], expected.entropy)
    logp = token_logp(view(leaf), tokens, mask, temperature=0.7)
    assert torch.equal(logp[mask], expected.at(0.7))
    weight = torch.rand(3, 40)
    (slope,) = torch.autograd.grad((token_logp(chosen, tokens[mask], temperature=0.7) * weight[mask]).sum(), chosen)
    seen = view(leaf)
    (got,) = torch.autograd.grad((token_logp(seen, tokens, mask, temperature=0.7) * weight).sum(), seen)
    assert torch.equal(got[mask], slope)
    assert not got[~mask].any()


@pytest.mark.parametrize("vocab", [61, 33_000, QWEN3_VOCAB])
def test_the_number_of_threads_and_the_rows_beside_change_no_bit(vocab: int) -> None:
    logits, target = peaked_logits(max(3, 20_000 // vocab), vocab, 15.0, seed=4)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            scores = token_scores(logits, target, temperatures=(1.0, 0.7), entropy=True)
            for temperature in (1.0, 0.7):
                for rows in (slice(0, 1), slice(1, None)):
                    alone = token_logp(logits[rows], target[rows], temperature=temperature)
                    assert torch.equal(alone, scores.at(temperature)[rows]), (threads, temperature)
            found.append(torch.cat([scores.logp, scores.entropy.unsqueeze(0)]))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(other, found[0])


def test_the_default_dtype_changes_no_bit() -> None:
    """Loaders of models set another default for a while."""
    logits, target = peaked_logits(5, 9001, 9.0, seed=5)
    expected = token_scores(logits, target, temperatures=(1.0, 0.7), entropy=True)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = token_scores(logits, target, temperatures=(1.0, 0.7), entropy=True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.logp.dtype == torch.float32
    assert torch.equal(found.logp, expected.logp)
    assert torch.equal(found.entropy, expected.entropy)
