"""Tokens that a policy observed between those it sampled: the context of what follows, and nothing that is counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nemo_uecr.audit.groups import teacher_rewards
from nemo_uecr.audit.sources import jsonl_source, table_source
from nemo_uecr.audit.store import read_scored
from nemo_uecr.audit.teacher import compare_engines
from nemo_uecr.responses.table import read_responses, write_again
from tests.audit.test_score import direct, scored
from tests.local import tiny

PROMPT = [4, 5, 6]
IDS = [[7, 8, 9, 10, 2], [7, 11, 12, 2]]
SAMPLED = [[True, False, False, True, True], [True, True, True, True]]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Two responses, one with text of an environment inside."""
    lines = [
        {"problem": "p", "checkpoint": 0, "sample": row, "response": "x", "prompt_ids": PROMPT, "token_ids": ids,
         "sampled": own, "reward": float(row), "answer": "1"}
        for row, (ids, own) in enumerate(zip(IDS, SAMPLED, strict=True))
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def expected(model: Path) -> list[Tensor]:
    """[3, n] log-probability, entropy and rank of the sampled tokens, each after all that precedes it."""
    whole = (direct(tiny.load(model), PROMPT, ids) for ids in IDS)
    return [values_3N[:, torch.tensor(own)] for values_3N, own in zip(whole, SAMPLED, strict=True)]


def test_scores_follow_what_was_observed_and_leave_it_out(tmp_path: Path, rows: Path) -> None:
    scores = scored(tmp_path / "s", jsonl_source(rows, step=None))
    order = [scores.ids.index(f"step 0/file/p/{row}") for row in range(2)]
    assert scores.scored_B[order].tolist() == [3, 4]
    tokens = scores.tokens("student", 0)
    assert tokens.teacher_rank is not None
    found = torch.stack([tokens.teacher_logp.double(), tokens.entropy.double(), tokens.teacher_rank.double()])
    teacher, student = expected(tiny.TEACHER), expected(tiny.STUDENT)
    for row, place in enumerate(order):
        assert_close(found[:, tokens.span(place)], teacher[row], atol=2e-5, rtol=0)
        assert_close(tokens.anchor_logp[tokens.span(place)].double(), student[row][0], atol=2e-5, rtol=0)
    reward_B, _ = teacher_rewards(scores, "student", clip=None)
    means = [float((one[0] - other[0]).mean()) for one, other in zip(teacher, student, strict=True)]
    np.testing.assert_allclose(reward_B[order], means, atol=1e-4)
    # What an engine scores of the whole sequences is compared at the sampled tokens alone.
    compared = compare_engines(scores, str(tiny.TEACHER), ["transformers"], responses=None)
    assert compared["tokens_compared"] == 7
    assert compared["engines"]["transformers"]["logp"]["max"] < 1e-5
    # A table with holes is a source like any other.
    again = scored(tmp_path / "again", table_source(scores.tables[0].path, step=None))
    assert_close(again.tokens("student", 0).teacher_logp, tokens.teacher_logp, atol=1e-5, rtol=0)


def test_a_runs_own_step_with_an_observed_token(tmp_path: Path) -> None:
    """The batch audit, the audits of scores and the credit map of a step whose second token was observed."""
    from nemo_uecr.report.credit import step_map

    folder = tiny.run(tmp_path / "run", "train.steps=1", "telemetry.save_batch_every=1")
    path = folder / "batches" / "step-000001.parquet"
    saved, whole = read_responses(path), read_scored(folder)
    sampled_BT = saved.padded("sampled")
    sampled_BT[:, 1] = False
    write_again(saved, path, rows={}, tokens={"sampled": sampled_BT}, without=frozenset(), about=saved.about)
    found = read_scored(folder)
    assert found.scored_B.tolist() == sampled_BT.sum(dim=1).tolist() < whole.scored_B.tolist()
    gap_BT = (saved.padded("teacher_logp") - saved.padded("old_logp")).double() * sampled_BT
    reward_B, _ = teacher_rewards(found, "student", clip=None)
    np.testing.assert_allclose(reward_B, gap_BT.sum(dim=1) / sampled_BT.sum(dim=1), atol=1e-6)
    shown = step_map(1, path, token_budget=10_000)["responses"]
    assert [one["count"] for one in shown] == [len(one["text"]) for one in shown]
    assert sum(one["count"] for one in shown) == int(sampled_BT.sum())
