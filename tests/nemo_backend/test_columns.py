"""Scores of a micro-batch in every layout against a plain softmax over the same logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nemo_uecr.nemo.columns import ModelParallel, score_columns
from nemo_uecr.nemo.layout import MicroBatch
from nemo_uecr.nemo.request import ScoreRequest, row_hash
from nemo_uecr.nemo.shift import at_predicting_position, at_scored_token, predicted_token
from nemo_uecr.scoring.records import NonFiniteScoreError

ALONE = ModelParallel(None, None)
VOCABULARY = 11


def request_of(*temperatures: float, entropy: bool = True, chunk: int = 5) -> ScoreRequest:
    return ScoreRequest(temperatures, entropy, VOCABULARY, chunk)


def rows_of(lengths: list[int], width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, VOCABULARY, (len(lengths), width), generator=generator)
    return ids, torch.tensor(lengths)


def expected(logits_BSV: Tensor, ids: Tensor, lengths: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability at a temperature and entropy at 1, at the scored token; a loop, so that no shift is shared."""
    logp, entropy = torch.zeros(ids.shape), torch.zeros(ids.shape)
    for row in range(ids.shape[0]):
        for token in range(1, int(lengths[row])):
            z = logits_BSV[row, token - 1].double()
            logp[row, token] = torch.log_softmax(z / temperature, -1)[ids[row, token]]
            p = torch.softmax(z, -1)
            entropy[row, token] = -(p * p.log()).sum()
    return logp, entropy


def test_padded_rows() -> None:
    ids, lengths = rows_of([6, 4, 2], 6)
    logits = torch.randn(3, 6, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3
    found = score_columns(logits, MicroBatch(ids, lengths, None), request_of(0.7, 1.0), ALONE)
    for name, temperature in (("logp_0", 0.7), ("logp_1", 1.0)):
        logp, entropy = expected(logits, ids, lengths, temperature)
        torch.testing.assert_close(found[name], logp, atol=2e-6, rtol=0)
    torch.testing.assert_close(found["entropy"], entropy, atol=2e-6, rtol=0)


def test_logits_that_are_not_finite_are_refused() -> None:
    """As a teacher with one bad weight gives them; the seventh scored token is the second of row 1."""
    ids, lengths = rows_of([6, 4], 6)
    logits = torch.randn(2, 6, VOCABULARY, generator=torch.Generator().manual_seed(2))
    logits[1, 1, 3] = float("nan")
    with pytest.raises(NonFiniteScoreError, match="token 6"):
        score_columns(logits, MicroBatch(ids, lengths, None), request_of(0.7, 1.0, chunk=100), ALONE)


def packed(logits_BSV: Tensor, lengths: Tensor, multiple: int) -> tuple[Tensor, Tensor]:
    """Sequences side by side, each padded to a multiple; returns the logits and where each begins."""
    parts, starts = [], [0]
    for row, length in enumerate(lengths.tolist()):
        whole = length + -length % multiple
        part = torch.full((whole, VOCABULARY), 50.0)
        part[:length] = logits_BSV[row, :length]
        parts.append(part)
        starts.append(starts[-1] + whole)
    return torch.cat(parts).unsqueeze(0), torch.tensor(starts, dtype=torch.int32)


@pytest.mark.parametrize("multiple", [1, 4])
def test_packed_sequences(multiple: int) -> None:
    ids, lengths = rows_of([6, 3, 5], 6)
    logits = torch.randn(3, 6, VOCABULARY, generator=torch.Generator().manual_seed(2))
    flat, starts = packed(logits, lengths, multiple)
    found = score_columns(flat, MicroBatch(ids, lengths, starts), request_of(0.7), ALONE)
    logp, entropy = expected(logits, ids, lengths, 0.7)
    torch.testing.assert_close(found["logp_0"], logp, atol=2e-6, rtol=0)
    torch.testing.assert_close(found["entropy"], entropy, atol=2e-6, rtol=0)


def test_chunks_do_not_change_a_bit() -> None:
    ids, lengths = rows_of([6, 4, 6], 6)
    logits = torch.randn(3, 6, VOCABULARY, generator=torch.Generator().manual_seed(4))
    micro = MicroBatch(ids, lengths, None)
    whole = score_columns(logits, micro, request_of(0.7, 1.0, chunk=1000), ALONE)
    pieces = score_columns(logits, micro, request_of(0.7, 1.0, chunk=2), ALONE)
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_bfloat16_is_divided_in_bfloat16() -> None:
    """Training divides bf16 logits in bf16; a float32 division here would put the first ratio off 1."""
    ids, lengths = rows_of([6], 6)
    logits = (torch.randn(1, 6, VOCABULARY, generator=torch.Generator().manual_seed(5)) * 20).bfloat16()
    found = score_columns(logits, MicroBatch(ids, lengths, None), request_of(0.7, 1.0), ALONE)
    as_trained, _ = expected(logits.div(0.7).float(), ids, lengths, 1.0)
    in_float, _ = expected(logits.float(), ids, lengths, 0.7)
    torch.testing.assert_close(found["logp_0"], as_trained, atol=2e-5, rtol=0)
    assert float((as_trained - in_float).abs().max()) > 1e-2
    raw, entropy = expected(logits.float(), ids, lengths, 1.0)
    torch.testing.assert_close(found["logp_1"], raw, atol=2e-5, rtol=0)
    torch.testing.assert_close(found["entropy"], entropy, atol=2e-5, rtol=0)


def test_padded_vocabulary_carries_no_probability() -> None:
    ids, lengths = rows_of([6], 6)
    logits = torch.randn(1, 6, VOCABULARY)
    padded = torch.cat((logits, torch.full((1, 6, 3), 9.0)), dim=2)
    micro = MicroBatch(ids, lengths, None)
    plain, wide = (score_columns(value, micro, request_of(1.0), ALONE) for value in (logits, padded))
    torch.testing.assert_close(plain["logp_0"], wide["logp_0"], atol=1e-6, rtol=0)
    torch.testing.assert_close(plain["entropy"], wide["entropy"], atol=1e-6, rtol=0)


def test_shift_there_and_back() -> None:
    ids = torch.arange(10).view(2, 5)
    assert predicted_token(ids).tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]
    # What is stored at token t was computed from position t - 1, and the loss reads it beside position t - 1.
    assert torch.equal(at_predicting_position(at_scored_token(predicted_token(ids))), predicted_token(ids))
    assert at_scored_token(predicted_token(ids))[:, 0].tolist() == [0, 0]


def test_row_hash_sees_ids_and_order_but_no_padding() -> None:
    ids = torch.tensor([[3, 4, 5, 0], [4, 3, 5, 0], [3, 4, 5, 9], [3, 4, 0, 0]])
    first, swapped, other_padding, shorter = row_hash(ids, torch.tensor([3, 3, 3, 2])).tolist()
    assert first == other_padding
    assert len({first, swapped, shorter}) == 3
    # A longer row that ends in the padding id is another row.
    assert row_hash(ids[:1], torch.tensor([4])).item() != first
