"""Scores travel with what they were computed from, and are checked where they are used.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.errors import ScoreError, UecrError
from nemo_uecr.nemo.worker_scoring import ScoreRequest, row_hash, spot_checked_token

#: Largest difference in nats between a float32 score and its spot check, which is normalised in float64.
SPOT_CHECK_NATS = 1e-3


class ContractError(ScoreError):
    """Scores do not belong to the tokens, the temperature or the vocabulary they are about to be used for."""


class BatchFactsError(UecrError, RuntimeError):
    """What was generated, rewarded and trained in a step does not add up."""


def score(scorer: Any, data: Any, request: ScoreRequest, *, name: str) -> Mapping[str, Tensor]:
    """Score NeMo-RL's batch, of any number of rows, by our policy or teacher of this name, and verify the answer."""
    rows = data["input_ids"].shape[0]
    answer = scorer.score_tokens(with_masked_rows(data, -rows % scorer.row_multiple), request)
    return verified({column: value[:rows] for column, value in answer.items()}, request, data, scorer=name)


def with_masked_rows(data: Any, extra: int) -> Any:
    """NeMo-RL's batch with ``extra`` rows of zeros, masks too; each has a length of 1: no layout knows an empty one."""

    def longer(name: str, column: Tensor) -> Tensor:
        return torch.cat((column, column.new_full((extra, *column.shape[1:]), int(name == "input_lengths"))))

    return type(data)({name: longer(name, column) for name, column in data.items()}) if extra else data


def verified(
    answer: Mapping[str, Tensor], request: ScoreRequest, tokens: Mapping[str, Tensor], *, scorer: str
) -> Mapping[str, Tensor]:
    """The answer, accepted only if it is about these tokens, these temperatures and this vocabulary.

    Args:
        answer: columns by name, with ``row_hash``, ``spot_check`` and ``top_ids``.
        request: what was asked.
        tokens: ``input_ids`` [B, S] and ``input_lengths`` [B] of the batch.
        scorer: who answered, for messages.
    """
    hash_B, expected_B = answer["row_hash"], row_hash(tokens["input_ids"], tokens["input_lengths"])
    if not torch.equal(hash_B, expected_B):
        both = min(len(hash_B), len(expected_B))
        wrong = (hash_B[:both] != expected_B[:both]).nonzero().flatten().tolist()
        raise ContractError(
            f"the scores of the {scorer} belong to other token ids than the batch's {len(expected_B)} rows, first in "
            f"row {wrong[0] if wrong else both}: rows were reordered, cut or replaced"
        )
    _check_spots(answer, request, tokens["input_lengths"], scorer)
    return answer


def _check_spots(answer: Mapping[str, Tensor], request: ScoreRequest, lengths_B: Tensor, scorer: str) -> None:
    """Compare each response's spot check, by the definition from a whole row of logits, with that token's score."""
    rows_B = (lengths_B > 1).nonzero().squeeze(1).cpu()
    column_B = spot_checked_token(lengths_B.cpu())[rows_B]
    seen_BW = answer["spot_check"][rows_B]
    temperatures, count = tuple(request.temperatures.values()), len(request.columns)
    used_BK = seen_BW[:, count + 1 :]
    if used_BK.shape[1] != len(temperatures) or not torch.allclose(used_BK, torch.tensor(temperatures)):
        used = sorted({tuple(round(value, 6) for value in row) for row in used_BK.tolist()})
        raise ContractError(
            f"the {scorer}'s worker divided by the temperatures {used}; expected {temperatures} in every row"
        )
    for columns in torch.unique(seen_BW[:, count]).int().tolist():
        if columns != request.vocabulary:
            raise ContractError(
                f"the {scorer} scored over {columns} columns; expected the {request.vocabulary} that count: its logits "
                "were filtered, masked or cut before they were scored"
            )
    meaning = {name: f"log-probability at temperature {value:g}" for name, value in request.temperatures.items()}
    meaning |= {"entropy": "entropy", "dropped": "dropped mass"}
    for place, name in enumerate(request.columns):
        off_B = (answer[name][rows_B, column_B] - seen_BW[:, place]).abs()
        wrong_B = ~(off_B <= SPOT_CHECK_NATS)  # NaN is wrong, too
        if bool(wrong_B.any()):
            raise ContractError(
                f"the {scorer}'s {meaning[name]} is off the definition by {float(off_B.max()):.3g} nats, first in row "
                f"{int(rows_B[wrong_B][0])}; expected at most {SPOT_CHECK_NATS:g}: its worker divides by another "
                "temperature, shifts or filters"
            )


def check_same(column: Tensor, expected: Tensor, *, what: str) -> None:
    """Refuse when a column is not, bit for bit, the one that was handed out."""
    if not torch.equal(column, expected.to(column.dtype)):
        raise ContractError(
            f"{what} changed between where it was computed and where it is used; expected the same values. Look for a "
            "setting that rewrites it, such as advantage clipping, penalties or a sequence filter"
        )
