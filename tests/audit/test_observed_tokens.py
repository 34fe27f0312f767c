"""Tokens that a policy observed between those it sampled: the context of what follows, and nothing that is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from nemo_uecr.audit.alpha_sweep import alpha_sweep_audit
from nemo_uecr.audit.facts import facts_of_run, facts_of_scores
from nemo_uecr.audit.group_signal import group_signal_audit
from nemo_uecr.audit.groups import teacher_rewards
from nemo_uecr.audit.judging import Labels
from nemo_uecr.audit.localization import localization_audit
from nemo_uecr.audit.output import plain
from nemo_uecr.audit.signal import signal_audit
from nemo_uecr.audit.sources import jsonl_source, table_source
from nemo_uecr.audit.store import Scored, read_scored
from nemo_uecr.audit.teacher import compare_engines, teacher_audit
from nemo_uecr.audit.token_credit import token_credit_audit
from nemo_uecr.core.methods.uecr import Uecr
from nemo_uecr.responses.replay import recompute
from nemo_uecr.responses.table import part_paths, read_responses
from tests.audit import made
from tests.audit.test_score import direct, scored
from tests.local import tiny
from tests.responses.tables import with_observed

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


UECR = Uecr(alpha=1.0, rho=0.5, tau_delta=2.0, tau_entropy=0.7)
LABELS = Labels(item="item", labels=("valid", "invalid", "valid", "not_reasoning"), first_error=2)


def localized(scores: Scored) -> Any:
    labels = {name: LABELS for place, name in enumerate(scores.ids) if place % 8 < 5}
    return localization_audit(
        scores, labels, UECR, made.TOKENIZER, checkpoint=0, shuffles=3, replicates=20, seed=1
    ).numbers


READERS: dict[str, Callable[[Scored], Any]] = {
    "signal": lambda scores: signal_audit(scores, None, replicates=20, seed=1).numbers,
    "token-credit": lambda scores: token_credit_audit(scores, UECR, checkpoint=None, replicates=20, seed=1).numbers,
    "group-signal": lambda scores: group_signal_audit(scores, anchor="base", replicates=20, seed=1).numbers,
    "alpha-sweep": lambda scores: alpha_sweep_audit(scores, replicates=20, seed=1).numbers,
    "teacher": lambda scores: teacher_audit(facts_of_scores(scores), {}).rows,
    "localization": localized,
}


@pytest.mark.parametrize("name", READERS)
def test_no_number_of_an_audit_depends_on_what_was_observed(tmp_path: Path, name: str) -> None:
    drawn = made.random_responses({0: 12, 3: 12}, problems=8, tokens=6, seed=3)
    made.write_scores(tmp_path, made.failed_groups() if name == "localization" else drawn)
    before = READERS[name](read_scored(tmp_path))
    for path in part_paths(tmp_path):
        with_observed(path)
    scores = read_scored(tmp_path)
    assert len(scores.column("sampled")[0]) > scores.scored_B[0]
    assert plain(READERS[name](scores)) == plain(before)


def test_a_runs_own_step(tmp_path: Path) -> None:
    """The batch audit, the teacher's audit, the credit map and the replay of a step that was not sampled alone."""
    from nemo_uecr.report.credit import step_map

    folder = tiny.run(tmp_path / "run", "train.steps=1", "telemetry.save_batch_every=1")
    path = folder / "batches" / "step-000001.parquet"

    def facts() -> Any:
        return teacher_audit(facts_of_run(folder), {}).rows, made.audited(folder)

    before, shown = facts(), step_map(1, path, token_budget=10_000)["responses"]
    with_observed(path)
    table = read_responses(path)
    assert table.count_B.sum() < sum(map(len, table.column("token_ids")))
    assert facts() == before
    assert before[1]["faults"] == []
    assert recompute(path).difference < 1e-6
    for one, other in zip(step_map(1, path, token_budget=10_000)["responses"], shown, strict=True):
        assert (one["count"], one["text"]) == (other["count"], other["text"])
        np.testing.assert_allclose(one["after"], other["after"], atol=1e-5)
