"""Scores of a micro-batch in every layout against a plain softmax, and refused where they belong elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_uecr.nemo import worker_scoring
from nemo_uecr.nemo.score_checks import ContractError, verified
from nemo_uecr.nemo.worker_scoring import MicroBatch, ModelParallel, ScoreRequest, row_hash, score_columns
from nemo_uecr.scoring.records import NonFiniteScoreError
from tests.nemo.on_ranks import padded_rows

ALONE = ModelParallel(None, None)
VOCABULARY = 11
REQUEST = ScoreRequest({"rollout_logp": 0.7, "logp": 1.0}, True, VOCABULARY, 5)


def rows_of(*lengths: int) -> tuple[MicroBatch, Tensor]:
    """Padded rows and their logits."""
    ids = torch.randint(0, VOCABULARY, (len(lengths), 6), generator=torch.Generator().manual_seed(3))
    logits = torch.randn(len(lengths), 6, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3
    return padded_rows({"input_ids": ids, "input_lengths": torch.tensor(lengths)}), logits


def expected(logits_BSV: Tensor, micro: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability at a temperature and entropy at 1, at the scored token; a loop, so that no shift is shared."""
    logp, entropy = torch.zeros(micro.ids_BS.shape), torch.zeros(micro.ids_BS.shape)
    for row, length in enumerate(micro.lengths_B.tolist()):
        for token in range(1, length):
            z = logits_BSV[row, token - 1].double()
            logp[row, token] = torch.log_softmax(z / temperature, -1)[micro.ids_BS[row, token]]
            p = torch.softmax(z, -1)
            entropy[row, token] = -(p * p.log()).sum()
    return logp, entropy


def assert_expected(found: dict[str, Tensor], logits_BSV: Tensor, micro: MicroBatch) -> None:
    for name, temperature in REQUEST.temperatures.items():
        logp, entropy = expected(logits_BSV, micro, temperature)
        torch.testing.assert_close(found[name], logp, atol=2e-6, rtol=0)
    torch.testing.assert_close(found["entropy"], entropy, atol=2e-6, rtol=0)
    for row, length in enumerate(micro.lengths_B.tolist()):
        if length > 1:  # what predicts the middle token
            ranked = logits_BSV[row, length // 2 - 1].argsort(descending=True)
            assert torch.equal(found["top_ids"][row], ranked[: found["top_ids"].shape[1]])


def test_columns_behind_the_vocabulary_carry_no_probability() -> None:
    micro, logits = rows_of(6, 4, 2)
    wide = torch.cat((logits, torch.full((3, 6, 3), 9.0)), dim=2)
    assert_expected(score_columns(wide, micro, REQUEST, ALONE), logits, micro)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_teacher_with_more_columns_is_cut_before_its_softmax(dtype: torch.dtype) -> None:
    """And says how much probability it lost; a worker that says otherwise is caught."""
    micro, logits = rows_of(6, 4, 2)
    wide = torch.cat((logits, torch.full((3, 6, 3), 2.0)), dim=2).to(dtype)
    request = replace(REQUEST, temperatures={"logp": 1.0}).to_teacher(VOCABULARY + 3)
    assert (request.vocabulary, request.dropped) == (VOCABULARY, True)
    answer = score_columns(wide, micro, request, ALONE)
    tokens = {"input_ids": micro.ids_BS, "input_lengths": micro.lengths_B}
    found = verified(answer, request, tokens, scorer="teacher")
    logp, entropy = expected(wide[..., :VOCABULARY].float(), micro, 1.0)
    torch.testing.assert_close(found["logp"], logp, atol=2e-6, rtol=0)
    torch.testing.assert_close(found["entropy"], entropy, atol=2e-6, rtol=0)
    mass = wide.double().softmax(dim=-1)[..., VOCABULARY:].sum(dim=-1)
    for row, length in enumerate(micro.lengths_B.tolist()):
        torch.testing.assert_close(found["dropped"][row, 1:length].double(), mass[row, : length - 1], atol=1e-6, rtol=0)
    with pytest.raises(ContractError, match="teacher's dropped mass is off the definition"):
        verified(answer | {"dropped": answer["dropped"] * 0}, request, tokens, scorer="teacher")
    with pytest.raises(ContractError, match="scored over 14 columns; expected the 11"):
        verified(score_columns(wide, micro, replace(request, vocabulary=14), ALONE), request, tokens, scorer="teacher")
    assert replace(REQUEST, temperatures={"logp": 1.0}).to_teacher(VOCABULARY - 3).vocabulary == VOCABULARY - 3


@pytest.mark.parametrize("multiple", [1, 4])
def test_packed_sequences(multiple: int) -> None:
    """Sequences side by side, each padded to a multiple."""
    micro, logits = rows_of(6, 3, 5)
    parts, starts = [], [0]
    for row, length in enumerate(micro.lengths_B.tolist()):
        part = torch.full((length + -length % multiple, VOCABULARY), 50.0)
        part[:length] = logits[row, :length]
        parts.append(part)
        starts.append(starts[-1] + len(part))
    packed = micro._replace(starts=torch.tensor(starts, dtype=torch.int32))
    assert_expected(score_columns(torch.cat(parts)[None], packed, REQUEST, ALONE), logits, micro)


def test_logits_that_are_not_finite_are_refused() -> None:
    """As a teacher with one bad weight gives them; the seventh scored token is the second of row 1."""
    micro, logits = rows_of(6, 4)
    logits[1, 1, 3] = float("nan")
    with pytest.raises(NonFiniteScoreError, match="token 6"):
        score_columns(logits, micro, replace(REQUEST, chunk_tokens=100), ALONE)


def test_chunks_do_not_change_a_bit() -> None:
    micro, logits = rows_of(6, 4, 6)
    whole, pieces = (score_columns(logits, micro, replace(REQUEST, chunk_tokens=size), ALONE) for size in (1000, 2))
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_bfloat16_is_divided_in_bfloat16() -> None:
    """Training divides bf16 logits in bf16; a float32 division here would put the first ratio off 1."""
    micro, logits = rows_of(6)
    logits = (logits * 7).bfloat16()
    found = score_columns(logits, micro, REQUEST, ALONE)
    as_trained, _ = expected(logits.div(0.7).float(), micro, 1.0)
    in_float, _ = expected(logits.float(), micro, 0.7)
    torch.testing.assert_close(found["rollout_logp"], as_trained, atol=2e-5, rtol=0)
    assert float((as_trained - in_float).abs().max()) > 1e-2
    raw, entropy = expected(logits.float(), micro, 1.0)
    torch.testing.assert_close(found["logp"], raw, atol=2e-5, rtol=0)
    torch.testing.assert_close(found["entropy"], entropy, atol=2e-5, rtol=0)


def test_row_hash_sees_ids_and_order_but_no_padding() -> None:
    ids = torch.tensor([[3, 4, 5, 0], [4, 3, 5, 0], [3, 4, 5, 9], [3, 4, 0, 0]])
    first, swapped, other_padding, shorter = row_hash(ids, torch.tensor([3, 3, 3, 2])).tolist()
    assert first == other_padding
    assert len({first, swapped, shorter}) == 3
    # A longer row that ends in the padding id is another row.
    assert row_hash(ids[:1], torch.tensor([4])).item() != first


MICRO, LOGITS = rows_of(3, 2)
TOKENS = {"input_ids": MICRO.ids_BS, "input_lengths": MICRO.lengths_B}


def answer_to(request: ScoreRequest, logits: Tensor = LOGITS) -> dict[str, Any]:
    """A worker's answer over random logits."""
    return score_columns(logits, MICRO, request, ALONE)


def named(temperatures: tuple[float, ...]) -> dict[str, float]:
    """In the order of the request's columns."""
    return dict(zip(REQUEST.temperatures, temperatures, strict=True))


def refused(answer: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        verified(answer, REQUEST, TOKENS, scorer="teacher")


def test_rows_in_another_order_are_refused() -> None:
    honest = answer_to(REQUEST)
    assert verified(honest, REQUEST, TOKENS, scorer="teacher").keys() >= {"rollout_logp", "logp", "entropy"}
    message = "other token ids than the batch's 2 rows, first in row "
    refused(honest | {"row_hash": honest["row_hash"].flip(0)}, f"{message}0")
    refused(honest | {"row_hash": honest["row_hash"][:1]}, f"{message}1")


@pytest.mark.parametrize(
    ("temperatures", "message", "dtype"),
    [
        ((0.7, 0.7), "log-probability at temperature 1 is off", torch.float32),
        ((1.0, 1.0), "log-probability at temperature 0.7 is off", torch.bfloat16),
    ],
)
def test_a_worker_that_divides_by_another_temperature_is_caught(
    temperatures: tuple[float, float], message: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it used those it was asked for; its numbers do not."""
    honest = worker_scoring._score_chunk

    def other(logits_NV: Any, target_N: Any, request: ScoreRequest, group: Any) -> Any:
        return honest(logits_NV, target_N, replace(request, temperatures=named(temperatures)), group)

    monkeypatch.setattr(worker_scoring, "_score_chunk", other)
    refused(answer_to(REQUEST, LOGITS.to(dtype)), message)


@pytest.mark.parametrize("used", [(0.5, 1.0), (1.0, 0.7)])
def test_a_worker_that_answers_another_question_is_caught(used: tuple[float, float]) -> None:
    message = rf"divided by the temperatures \[\({used[0]}, {used[1]}\)\]; expected \(0.7, 1.0\)"
    refused(answer_to(replace(REQUEST, temperatures=named(used))), message)


def test_filtered_or_missing_columns_are_caught() -> None:
    """Top-k before the scores: 5 of 11 columns carry probability."""
    kept = LOGITS.masked_fill(LOGITS.topk(5, dim=-1).values[..., -1:] > LOGITS, -torch.inf)
    refused(answer_to(REQUEST, kept), "scored over 5 columns; expected the 11")
    refused(answer_to(replace(REQUEST, vocabulary=10)), "scored over 10 columns; expected the 11")


def test_a_score_beside_its_token_is_caught() -> None:
    honest = answer_to(REQUEST)
    refused(honest | {"logp": honest["logp"].roll(-1, 1)}, r"off the definition by .* shifts or filters")
