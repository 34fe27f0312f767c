"""Each score of a step reaches the column it is for, and no column or row changes on its way to the training."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.errors import ScoreError
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.estimator import UecrEstimator
from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN, PREFIX
from nemo_uecr.nemo.policy import PolicyMethods, padded_minibatches
from nemo_uecr.nemo.score_checks import BatchFactsError, ContractError, score
from nemo_uecr.nemo.step import Routes, StepContext, StepScores
from nemo_uecr.nemo.telemetry import resumed_state, save_state
from nemo_uecr.nemo.worker_scoring import MicroBatch, ModelParallel, ScoreRequest, score_columns
from nemo_uecr.steps.routing import PolicyScores, TeacherScores
from tests.config.shipped import CONFIGS, GIVEN
from tests.core import sparse
from tests.nemo.losses import loss_of

GROUP, ROWS, WIDTH = 3, 6, 6


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
        "cluster.gpus_per_node=1", "rollout.temperature=0.61", "student.vocabulary=9",
    ]  # fmt: skip
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GIVEN["1p7b"], *given, *changes])
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
    batch, scores = context.outcome.record.scored, context.scores
    assert scores.teacher is not None
    assert scores.teacher.entropy_BT is not None
    made = (batch.old_logp_BT, batch.score("teacher_logp"), batch.score("teacher_entropy"))
    for got, given in zip(
        made, (scores.student.logp_BT, scores.teacher.logp_BT, scores.teacher.entropy_BT), strict=True
    ):
        assert torch.equal(got, given.masked_fill(~batch.mask_BT, 0.0))


@pytest.mark.parametrize(("grouping", "group"), [("paper", [0, 0, 0, 1, 1, 1]), ("nemo_rl", [0] * ROWS)])
def test_groups_are_the_problems_or_as_nemo_rl_has_it_equal_prompts(grouping: str, group: list[int]) -> None:
    context, data = scored_step(f"conventions.grouping={grouping}")
    estimate(context, data)
    assert context.outcome.record.group_B.tolist() == group


def test_a_turn_ends_with_a_token_that_contains_the_separator() -> None:
    context, data = scored_step("method.name=atod", "method.turn_separator=|")
    context.tokenizer = SimpleNamespace(decode=lambda ids: "a|" if ids == [3] else "b")
    context.scores = replace(context.scores, token_ids_BS=torch.tensor([[3, 3, 1, 3, 2, 3]] * ROWS))
    estimate(context, data)
    segments = context.outcome.record.segments_BT
    assert segments is not None
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


class Base:
    """NeMo-RL's policy as far as training asks it."""

    data_parallel_size = 1
    cfg = {"sequence_packing": {"enabled": True}, "dynamic_batching": {"enabled": False}}  # noqa: RUF012

    def train(self, data: Any, loss_fn: Any, **given: Any) -> Any:
        raise LookupError("it trained")


class Policy(PolicyMethods, Base):
    """Ours over it, with room on every GPU."""

    def assert_room(self, *, waking: bool) -> None: ...


def scores_of(data: Any, request: ScoreRequest, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    micro = MicroBatch(data["input_ids"], data["input_lengths"], None)
    return score_columns(logits, micro, request, ModelParallel(None, None))


def test_the_loop_gets_the_column_at_the_rollout_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the record keeps the one at temperature 1 beside it, from the same forward."""
    logits = torch.randn(ROWS, WIDTH, 9, generator=torch.Generator().manual_seed(1))
    context, data = scored_step()
    monkeypatch.setattr(
        upstream, "score_on_workers", lambda policy, data, request, *, seconds: scores_of(data, request, logits)
    )
    handed = Policy(context=context, teachers={}).get_logprobs(data)["logprobs"]

    def by_definition(temperature: float) -> torch.Tensor:
        logp = (logits / temperature).log_softmax(dim=-1)[:, :-1]
        return torch.nn.functional.pad(logp.gather(2, data["input_ids"][:, 1:, None])[..., 0], (1, 0))

    torch.testing.assert_close(handed, by_definition(0.61), atol=1e-5, rtol=0)
    torch.testing.assert_close(context.scores.student.logp_BT, by_definition(1.0), atol=1e-5, rtol=0)


def test_a_sampled_token_outside_nemo_rls_filter_stops_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later trees say -inf there: the ratio would be infinite."""
    context, data = scored_step("conventions.filters=nemo_rl")
    filtered = torch.zeros(ROWS, WIDTH)
    filtered[:, 0] = -torch.inf  # nobody samples a prompt
    logits = torch.zeros(ROWS, WIDTH, 9)
    monkeypatch.setattr(
        upstream, "score_on_workers", lambda policy, data, request, **given: scores_of(data, request, logits)
    )
    monkeypatch.setattr(Base, "get_logprobs", lambda self, data, timer: {"logprobs": filtered}, raising=False)
    policy = Policy(context=context, teachers={})
    assert torch.equal(policy.get_logprobs(data)["logprobs"], filtered)
    filtered[1, 3] = -torch.inf
    with pytest.raises(ContractError, match=r"-inf at 1 sampled tokens; .*conventions\.filters=paper"):
        policy.get_logprobs(data)


@pytest.mark.parametrize("columns", [9, 12, 7])
def test_a_teacher_with_other_columns_scores_those_that_both_have(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The student's scores stay over its own nine columns; ids that the tokenizer lacks stop the step by row."""
    generator = torch.Generator().manual_seed(1)
    ours, theirs = (torch.randn(ROWS, WIDTH, width, generator=generator) for width in (9, columns))
    context, data = scored_step()
    data["input_ids"] %= 6
    context.tokenizer = SimpleNamespace(get_vocab=lambda: {str(token): token for token in range(6)})
    monkeypatch.setattr(
        upstream, "score_on_workers", lambda policy, data, request, *, seconds: scores_of(data, request, ours)
    )
    teacher: Any = SimpleNamespace(
        columns=columns, load=lambda: None, offload=lambda: None, data_parallel_size=1,
        score_tokens=lambda data, request: scores_of(data, request, theirs),
    )  # fmt: skip
    policy = Policy(context=context, teachers={"teacher": teacher})
    policy.get_logprobs(data)
    next_ids = data["input_ids"][:, 1:, None]
    for found, logits in ((context.scores.teacher, theirs[..., :9]), (context.scores.student, ours)):
        assert found is not None
        expected = logits[:, :-1].log_softmax(dim=-1).gather(2, next_ids)[..., 0]
        torch.testing.assert_close(found.logp_BT[:, 1:], expected, atol=1e-5, rtol=0)
    assert context.scores.teacher is not None
    assert (context.scores.teacher.dropped_BT is not None) == (columns == 12)
    data["input_ids"][4, 3] = 6
    if columns == 9:
        policy.get_logprobs(data)
        return
    with pytest.raises(ScoreError, match="response 4 has token id 6 at column 3, but the tokenizer has ids below 6"):
        policy.get_logprobs(data)


@pytest.mark.parametrize("name", ["prev_logprobs", "advantages", "token_mask", "sample_mask", "input_ids"])
def test_columns_that_changed_before_training_stop_it(name: str) -> None:
    context, data = scored_step()
    data = estimate(context, data)
    policy = Policy(context=context, teachers={})
    with pytest.raises(LookupError, match="it trained"):
        policy.train(data, None)
    data[name] = data[name].clone()
    data[name][1] += 1
    with pytest.raises(ContractError, match=f"^{name} changed"):
        policy.train(data, None)


def test_the_numbers_of_the_scores_are_made_while_the_workers_train(monkeypatch: pytest.MonkeyPatch) -> None:
    made = threading.Event()

    def train(self: Any, data: Any, loss_fn: Any, **given: Any) -> Any:
        assert made.wait(10)
        raise LookupError("it trained")

    monkeypatch.setattr(Base, "train", train)
    monkeypatch.setattr("nemo_uecr.steps.metrics.method_metrics", lambda *given, **named: made.set() or {})
    context, data = scored_step()
    with pytest.raises(LookupError, match="it trained"):
        Policy(context=context, teachers={}).train(estimate(context, data), None)


def test_a_methods_mask_reaches_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """At ratio 1: ``-mean A`` over the kept tokens, ``-A / N`` as gradient there, and nothing of a response without."""
    sparse.register(monkeypatch)
    context, data = scored_step("method.name=sparse", "loss.reference_kl=0")
    data = estimate(context, data)
    kept = context.outcome.advantages.loss_mask_BT
    assert kept is not None
    kept[1] = False  # a response of which nothing is kept
    data["advantages"][1] = context.outcome.handed_out_BS[1] = 0.0
    found: dict[str, Any] = {}

    def train(self: Any, data: Any, loss_fn: Any, **given: Any) -> Any:
        found.update(data)
        raise LookupError("it trained")

    monkeypatch.setattr(Base, "train", train)
    with pytest.raises(LookupError):
        Policy(context=context, teachers={}).train(data, None)
    assert torch.equal(found["token_mask"], kept.float())
    assert found["sample_mask"].tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert torch.equal(data["token_mask"], context.scores.token_mask_BS)  # NeMo-RL's own batch is as it was
    logp = found["prev_logprobs"][:, 1:].clone().requires_grad_()
    tokens = kept.sum()
    loss, metrics = loss_of()(logp, found | {"generation_logprobs": found["prev_logprobs"]}, torch.tensor(5.0), tokens)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-float(data["advantages"][kept].mean()), abs=1e-6)
    assert metrics[f"{PREFIX}trained_tokens"] == int(tokens) < int(context.scores.token_mask_BS.sum())
    torch.testing.assert_close(logp.grad, -(data["advantages"] * kept / tokens)[:, 1:], atol=1e-7, rtol=0)


def test_each_row_is_scored_by_its_problems_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are known by their prompts, each teacher loads once, and the estimator compares with the problems.

    Only the teacher b has columns to drop.
    """
    generator, columns = torch.Generator().manual_seed(1), {"a": 9, "b": 12, "s": 9}
    logits = {name: torch.randn(ROWS, WIDTH, width, generator=generator) for name, width in columns.items()}
    context, data = scored_step()
    context.tokenizer = SimpleNamespace(get_vocab=lambda: {str(token): token for token in range(9)})
    ids, events = data["input_ids"], list[str]()
    ids[:, :2] = torch.tensor([[1, 2], [3, 4]])[[0, 0, 0, 1, 1, 1]]

    def scores(name: str, part: Any, request: ScoreRequest) -> Any:
        rows = [int((ids == row).all(dim=1).int().argmax()) for row in part["input_ids"]]
        return scores_of(part, request, logits[name][rows])

    def teacher(name: str) -> Any:
        return SimpleNamespace(
            columns=columns[name], data_parallel_size=1,
            load=lambda: events.append(name), offload=lambda: events.append("off"),
            score_tokens=lambda part, request: scores(name, part, request),
        )  # fmt: skip

    monkeypatch.setattr(upstream, "score_on_workers", lambda policy, part, request, **given: scores("s", part, request))
    by_problem = {7: "b", 4: "a"}
    context.routes = Routes({(1, 2): "b", (3, 4): "a"}, [by_problem.get(number, "") for number in range(8)])
    Policy(context=context, teachers={"a": teacher("a"), "b": teacher("b")}).get_logprobs(data)
    assert (context.scores.teachers, events) == (["b"] * 3 + ["a"] * 3, ["a", "off", "b", "off"])
    expected = torch.cat((logits["b"][:3, :, :9], logits["a"][3:]))[:, :-1].log_softmax(dim=-1)
    assert context.scores.teacher is not None
    torch.testing.assert_close(
        context.scores.teacher.logp_BT[:, 1:], expected.gather(2, ids[:, 1:, None])[..., 0], atol=1e-5, rtol=0
    )
    assert context.scores.teacher.dropped_BT is not None
    assert context.scores.teacher.dropped_BT.isnan().all(dim=1).tolist() == [False] * 3 + [True] * 3
    estimate(context, data)
    context.routes = replace(context.routes, by_problem=["a"] * 8)
    with pytest.raises(ContractError, match="scored by the wrong teachers"):
        estimate(context, data)
    ids[4, 0] = 8
    with pytest.raises(ContractError, match="the prompt of row 4 belongs to no training problem"):
        Policy(context=context, teachers={"a": teacher("a"), "b": teacher("b")}).get_logprobs(data)


def test_a_scorer_gets_a_whole_batch_and_its_masked_rows_never_come_back() -> None:
    class Scorer:
        data_parallel_size = 4

        def score_tokens(self, data: Any, request: ScoreRequest) -> dict[str, Any]:
            assert data["input_ids"].shape == (8, WIDTH)
            assert data["input_lengths"].tolist() == [WIDTH] * ROWS + [1] * 2
            assert data["sample_mask"].tolist() == [1.0] * ROWS + [0.0] * 2
            return scores_of(data, request, torch.zeros(8, WIDTH, 9))

    _, data = scored_step()
    found = score(Scorer(), data, ScoreRequest({"logp": 1.0}, False, 9, 8), name="student")
    assert found["logp"].shape == (ROWS, WIDTH)


def test_minibatches_are_rounded_each() -> None:
    """Ten rows in mini-batches of five, on parts of four: 5 -> 8 twice, the masked rows at the end of each."""
    columns = {
        "input_ids": torch.arange(1, 31).view(10, 3), "input_lengths": torch.full((10,), 3),
        "sample_mask": torch.ones(10), "names": [f"row {row}" for row in range(10)],
    }  # fmt: skip
    batch, whole = padded_minibatches(columns, 5, 4)
    assert whole == 8
    assert batch["sample_mask"].tolist() == [1.0] * 5 + [0.0] * 3 + [1.0] * 5 + [0.0] * 3
    assert batch["names"][5:8] == [None] * 3
    assert torch.equal(batch["input_ids"][batch["sample_mask"] > 0], columns["input_ids"])
    assert batch[FIRST_STEP_COLUMN].tolist() == [1.0] * 5 + [0.0] * 11
