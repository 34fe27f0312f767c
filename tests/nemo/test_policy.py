"""Each score of a step reaches the column it is for, and no column or row changes on its way to the training."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.errors import ScoreError
from nemo_uecr.nemo.estimator import UecrEstimator
from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN
from nemo_uecr.nemo.score_checks import BatchFactsError, ContractError
from nemo_uecr.nemo.step import Routes, StepContext, StepScores
from nemo_uecr.nemo.telemetry import resumed_state, save_state
from nemo_uecr.steps.routing import PolicyScores, TeacherScores
from tests.config.shipped import nemo_run
from tests.core import sparse
from tests.nemo.inside.loop import OurTinyPolicy
from tests.nemo.inside.tiny_world import TinyModel, TinyPolicy, TinyTeacher

GROUP, ROWS, WIDTH, VOCABULARY = 3, 6, 6, 9


def scored_step(*changes: str) -> tuple[StepContext, dict[str, torch.Tensor]]:
    """A step of two prompts, three responses each, after scoring, every column another."""
    generator = torch.Generator().manual_seed(0)

    def column() -> torch.Tensor:
        return -torch.rand(ROWS, WIDTH, generator=generator) - 0.1

    ids = torch.randint(1, 9, (ROWS, WIDTH), generator=generator)
    mask = torch.zeros(ROWS, WIDTH)
    mask[:, 2:] = 1.0
    data = {
        "input_ids": ids, "input_lengths": torch.full((ROWS,), WIDTH), "token_mask": mask,
        "sample_mask": torch.ones(ROWS),
    }  # fmt: skip
    given = [
        "rollout.prompts_per_step=2", "rollout.responses_per_prompt=3", "train.minibatch_responses=6",
        "cluster.gpus_per_node=1", "rollout.temperature=0.61", f"student.vocabulary={VOCABULARY}",
    ]  # fmt: skip
    config = nemo_run(*given, *changes)
    student, teacher = PolicyScores(column(), column(), -column()), TeacherScores(column(), -column())
    context = StepContext(config, completed_steps=0, tokenizer=None)
    context.scores = StepScores(student, teacher, mask, data["sample_mask"], ids)
    return context, data


def estimate(context: StepContext, data: dict[str, torch.Tensor], **more: torch.Tensor) -> dict[str, torch.Tensor]:
    """The training columns."""
    rollouts = {"idx": [7] * GROUP + [4] * GROUP, "truncated": torch.zeros(ROWS)}
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    handed = context.scores.student.rollout_logp_BT
    advantages = UecrEstimator(context).compute_advantage(
        torch.zeros(ROWS, 2), rewards, data["token_mask"], rollouts, handed, None, **more
    )
    return data | {"prev_logprobs": handed, "advantages": advantages}


def test_a_response_that_nemo_rl_calls_invalid_is_not_counted_in_its_group_unseen() -> None:
    """Later versions say which responses count in their group's baseline."""
    valid = torch.ones(ROWS)
    estimate(*scored_step(), valid_mask=valid)
    valid[2] = 0
    with pytest.raises(BatchFactsError, match="leaves 1 of 6 responses out"):
        estimate(*scored_step(), valid_mask=valid)


def test_the_record_has_the_gap_at_temperature_one_and_the_teachers_entropy() -> None:
    context, data = scored_step()
    estimate(context, data)
    batch, student, teacher = context.outcome.record.scored, context.scores.student, context.scores.teacher
    for name, given in (
        ("old_logp", student.logp_BT),
        ("teacher_logp", teacher.logp_BT),
        ("teacher_entropy", teacher.entropy_BT),
    ):
        assert torch.equal(getattr(batch, f"{name}_BT"), given.masked_fill(~batch.mask_BT, 0.0)), name


def test_a_turn_ends_with_a_token_that_contains_the_separator() -> None:
    context, data = scored_step("method.name=atod", "method.turn_separator=|")
    context.tokenizer = SimpleNamespace(decode=lambda ids: "a|" if ids == [3] else "b")
    context.scores = replace(context.scores, token_ids_BS=torch.tensor([[3, 3, 1, 3, 2, 3]] * ROWS))
    estimate(context, data)
    segments = context.outcome.record.segments_BT
    assert segments[0].tolist() == [0, 0, 0, 0, 1, 1]


def test_what_a_method_carries_reaches_the_next_step_and_a_resumed_run(tmp_path: Path) -> None:
    context, data = scored_step("method.name=uecr_trust", f"run.folder={tmp_path}")
    scores, found = context.scores, []
    for _ in range(2):
        context.scores = scores
        estimate(context, data)
        context.finish()
        save_state(context)
        found.append(context.state)
    assert found[0]["groups"] > 0
    assert found[1]["groups"] == pytest.approx(1.8 * found[0]["groups"])
    assert resumed_state(tmp_path, step=1) == found[0]


def policy_of(context: StepContext, **teachers: TinyTeacher) -> Any:
    """Ours, over a tiny model in this process."""
    return OurTinyPolicy(TinyModel(0, vocabulary=VOCABULARY), minibatch=ROWS, context=context, teachers=teachers)


def teacher_of(columns: int, events: list[str] | None = None) -> TinyTeacher:
    return TinyTeacher(TinyModel(columns, vocabulary=columns), [] if events is None else events)


def logp_of(model: TinyModel, ids: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """By the definition, over the student's columns, at the scored tokens."""
    with torch.no_grad():
        logp = (model(ids)[..., :VOCABULARY] / temperature).log_softmax(dim=-1)[:, :-1]
    return torch.nn.functional.pad(logp.gather(2, ids[:, 1:, None])[..., 0], (1, 0))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_loop_gets_the_column_at_the_rollout_temperature() -> None:
    """And the record keeps the one at temperature 1 beside it, from the same forward."""
    context, data = scored_step("method.name=grpo", "teacher.model_name=null")
    policy = policy_of(context)
    assert_close(policy.get_logprobs(data)["logprobs"], logp_of(policy.model, data["input_ids"], 0.61))
    assert_close(context.scores.student.logp_BT, logp_of(policy.model, data["input_ids"]))


def test_a_sampled_token_outside_nemo_rls_filter_stops_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later trees say -inf there: the ratio would be infinite."""
    context, data = scored_step("conventions.filters=nemo_rl")
    filtered = torch.zeros(ROWS, WIDTH)
    filtered[:, 0] = -torch.inf  # nobody samples a prompt
    monkeypatch.setattr(TinyPolicy, "get_logprobs", lambda self, data, timer: {"logprobs": filtered})
    policy = policy_of(context, teacher=teacher_of(VOCABULARY))
    assert torch.equal(policy.get_logprobs(data)["logprobs"], filtered)
    filtered[1, 3] = -torch.inf
    with pytest.raises(ContractError, match=r"-inf at 1 sampled tokens; .*conventions\.filters=paper"):
        policy.get_logprobs(data)


@pytest.mark.parametrize("columns", [9, 12, 7])
def test_a_teacher_with_other_columns_scores_those_that_both_have(columns: int) -> None:
    """The student's scores stay over its own nine columns; ids that the tokenizer lacks stop the step by row."""
    context, data = scored_step()
    data["input_ids"] %= 6
    context.tokenizer = SimpleNamespace(get_vocab=lambda: {str(token): token for token in range(6)})
    teacher = teacher_of(columns)
    policy = policy_of(context, teacher=teacher)
    policy.get_logprobs(data)
    found = context.scores.teacher
    assert_close(found.logp_BT, logp_of(teacher.model, data["input_ids"]))
    assert_close(context.scores.student.logp_BT, logp_of(policy.model, data["input_ids"]))
    assert (found.dropped_BT is not None) == (columns == 12)
    data["input_ids"][4, 3] = 6
    if columns == 9:
        policy.get_logprobs(data)
        return
    with pytest.raises(ScoreError, match="response 4 has token id 6 at column 3, but the tokenizer has ids below 6"):
        policy.get_logprobs(data)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that reached NeMo-RL's training, which ends there."""
    batches: list[Any] = []

    def train(self: Any, data: Any, loss_fn: Any, **given: Any) -> Any:
        batches.append(data)
        raise LookupError("it trained")

    monkeypatch.setattr(TinyPolicy, "train", train)
    return batches


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("name", ["prev_logprobs", "advantages", "token_mask", "sample_mask", "input_ids"])
def test_columns_that_changed_before_training_stop_it(name: str) -> None:
    context, data = scored_step()
    data = estimate(context, data)
    with pytest.raises(LookupError, match="it trained"):
        policy_of(context).train(data, None)
    data[name] = data[name].clone()
    data[name][1] += 1
    with pytest.raises(ContractError, match=f"^{name} changed"):
        policy_of(context).train(data, None)


def test_the_numbers_of_the_scores_are_made_while_the_workers_train(monkeypatch: pytest.MonkeyPatch) -> None:
    made = threading.Event()

    def train(self: Any, data: Any, loss_fn: Any, **given: Any) -> Any:
        assert made.wait(10)
        raise LookupError("it trained")

    monkeypatch.setattr(TinyPolicy, "train", train)
    monkeypatch.setattr("nemo_uecr.steps.metrics.method_metrics", lambda *given, **named: made.set() or {})
    context, data = scored_step()
    with pytest.raises(LookupError, match="it trained"):
        policy_of(context).train(estimate(context, data), None)


def test_a_response_of_which_a_method_keeps_nothing_is_masked(
    trained: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the mask reaches the loss, the real loop shows. The rows of the first optimizer step are marked."""
    sparse.register(monkeypatch)
    context, data = scored_step("method.name=sparse", "loss.reference_kl=0", "train.minibatch_responses=3")
    data = estimate(context, data)
    kept = context.outcome.advantages.loss_mask_BT
    kept[1] = False
    with pytest.raises(LookupError):
        policy_of(context).train(data, None)
    assert torch.equal(trained[0]["token_mask"], kept.float())
    assert trained[0]["sample_mask"].tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert trained[0][FIRST_STEP_COLUMN].tolist() == [1.0] * 3 + [0.0] * 3
    assert torch.equal(data["token_mask"], context.scores.token_mask_BS)  # NeMo-RL's own batch is as it was


def test_each_row_is_scored_by_its_problems_teacher() -> None:
    """Rows are known by their prompts, each teacher loads once, and the estimator compares with the problems.

    Only the teacher b has columns to drop.
    """
    context, data = scored_step()
    context.tokenizer = SimpleNamespace(get_vocab=lambda: {str(token): token for token in range(VOCABULARY)})
    ids, events = data["input_ids"], list[str]()
    ids[:, :2] = torch.tensor([[1, 2], [3, 4]])[[0, 0, 0, 1, 1, 1]]
    a, b = teacher_of(VOCABULARY, events), teacher_of(12, events)
    by_problem = {7: "b", 4: "a"}
    context.routes = Routes({(1, 2): "b", (3, 4): "a"}, [by_problem.get(number, "") for number in range(8)])
    policy_of(context, a=a, b=b).get_logprobs(data)
    assert (context.scores.teachers, events) == (
        ["b"] * 3 + ["a"] * 3, ["teacher on", "teacher scores", "teacher off"] * 2,
    )  # fmt: skip
    found = context.scores.teacher
    assert_close(found.logp_BT, torch.cat((logp_of(b.model, ids[:3]), logp_of(a.model, ids[3:]))))
    assert found.dropped_BT.isnan().all(dim=1).tolist() == [False] * 3 + [True] * 3
    estimate(context, data)
    context.routes = replace(context.routes, by_problem=["a"] * 8)
    with pytest.raises(ContractError, match="scored by the wrong teachers"):
        estimate(context, data)
    ids[4, 0] = 8
    with pytest.raises(ContractError, match="the prompt of row 4 belongs to no training problem"):
        policy_of(context, a=a, b=b).get_logprobs(data)
