"""Each score of a step reaches the column it is for, and no column or row changes on its way to the training."""

from __future__ import annotations

import functools
import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.config.schema import RoutingConfig
from nemo_uecr.errors import DataError, ScoreError
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.estimator import UecrEstimator, groups_of_rows, problems_of_rows
from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN
from nemo_uecr.nemo.recipe import PROBLEM
from nemo_uecr.nemo.score_checks import BatchFactsError, ContractError
from nemo_uecr.nemo.step import Routes, StepContext, StepScores
from nemo_uecr.nemo.upstream import METHOD_STATE
from nemo_uecr.steps.routing import PolicyScores, TeacherScores
from tests.core import sparse
from tests.nemo.inside.loop import OurTinyPolicy
from tests.nemo.inside.tiny_world import TinyModel, TinyPolicy, TinyTeacher
from tests.nemo.made_recipe import METHOD, made_settings

GROUP, ROWS, WIDTH, VOCABULARY = 3, 6, 6, 9


def scored_step(**changes: Any) -> tuple[StepContext, dict[str, torch.Tensor]]:
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
    given = {
        "grpo__num_prompts_per_step": 2, "grpo__num_generations_per_prompt": GROUP,
        "policy__train_global_batch_size": ROWS, "policy__generation__temperature": 0.61,
    }  # fmt: skip
    settings = made_settings(VOCABULARY, **(given | changes))
    student, teacher = PolicyScores(column(), column(), -column()), TeacherScores(column(), -column())
    context = StepContext(settings, tokenizer=None)
    context.scores = StepScores(student, teacher, mask, data["sample_mask"], ids)
    return context, data


def estimate(context: StepContext, data: dict[str, Any], valid_mask: Any = None, **batch: Any) -> dict[str, Any]:
    """The training columns; ``batch`` are further columns of NeMo-RL's batch."""
    rollouts = {"idx": [7] * GROUP + [4] * GROUP, "truncated": torch.zeros(ROWS), **batch}
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    handed = context.scores.student.rollout_logp_BT
    advantages = UecrEstimator(context).compute_advantage(
        torch.zeros(ROWS, 2), rewards, data["token_mask"], rollouts, handed, None, valid_mask=valid_mask
    )
    return data | {"prev_logprobs": handed, "advantages": advantages}


def test_a_response_that_nemo_rl_calls_invalid_is_not_counted_in_its_group_unseen() -> None:
    """Later versions say which responses count in their group's baseline."""
    valid = torch.ones(ROWS)
    estimate(*scored_step(), valid_mask=valid)
    valid[2] = 0
    with pytest.raises(BatchFactsError, match="leaves 1 of 6 responses out"):
        estimate(*scored_step(), valid_mask=valid)


#: NeMo-RL's asynchronous loop, and vLLM's asynchronous engine in the synchronous one.
ASYNC_LOOP = {"grpo__async_grpo": {"enabled": True, "max_trajectory_age_steps": 1}}
ASYNC_ENGINE = {"policy__generation__vllm_cfg__async_engine": True}


@pytest.mark.parametrize("loop", [{}, ASYNC_LOOP])
def test_a_row_of_the_asynchronous_engine_has_the_number_of_its_problem_or_of_its_group(loop: dict[str, Any]) -> None:
    """NeMo-RL's rollout writes the place of a row into `idx` there; NeMo-Gym's rows have neither that nor facts."""
    ours = [{PROBLEM: 7}] * GROUP + [{PROBLEM: 4}] * GROUP
    for facts, expected in ((ours, (7, 4)), ([None] * ROWS, (0, 1)), (None, (0, 1))):
        context, data = scored_step(**ASYNC_ENGINE, **loop)
        estimate(context, data, idx=[*range(ROWS)], **({} if facts is None else {"extra_env_info": facts}))
        assert context.outcome.record.problems == [expected[0]] * GROUP + [expected[1]] * GROUP


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
    context, data = scored_step(uecr__method=METHOD | {"name": "atod", "turn_separator": "|"})
    context.tokenizer = SimpleNamespace(decode=lambda ids: "a|" if ids == [3] else "b")
    context.scores = replace(context.scores, token_ids_BS=torch.tensor([[3, 3, 1, 3, 2, 3]] * ROWS))
    estimate(context, data)
    segments = context.outcome.record.segments_BT
    assert segments[0].tolist() == [0, 0, 0, 0, 1, 1]


def test_what_a_method_carries_reaches_the_next_step_and_the_state_of_the_loop() -> None:
    """NeMo-RL writes that state into each checkpoint: a mapping in 0.7, an object with attributes since."""
    context, data = scored_step(uecr__method=METHOD | {"name": "uecr_trust"})
    scores, found = context.scores, []
    as_mapping, as_object = dict[str, Any](), SimpleNamespace()
    for state in (as_mapping, as_object):
        context.save_state = functools.partial(upstream.keep_method_state, state)
        context.scores = scores
        estimate(context, data)
        context.finish()
        found.append(context.state)
    assert found[0]["groups"] > 0
    assert found[1]["groups"] == pytest.approx(1.8 * found[0]["groups"])
    assert (as_mapping, vars(as_object)) == ({METHOD_STATE: found[0]}, {METHOD_STATE: found[1]})


def test_the_state_of_a_method_comes_from_the_checkpoint(tmp_path: Path) -> None:
    assert upstream.method_state(None) == {}
    (tmp_path / "training_info.json").write_text(json.dumps({"total_steps": 7, METHOD_STATE: {"groups": 3.0}}))
    assert upstream.method_state(tmp_path) == {"groups": 3.0}
    (tmp_path / "training_info.json").write_text(json.dumps({"total_steps": 7}))
    assert upstream.method_state(tmp_path) == {}


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
    context, data = scored_step(uecr__method={"name": "grpo"}, uecr__teacher=None)
    policy = policy_of(context)
    assert_close(policy.get_logprobs(data)["logprobs"], logp_of(policy.model, data["input_ids"], 0.61))
    assert_close(context.scores.student.logp_BT, logp_of(policy.model, data["input_ids"]))


def test_a_sampled_token_outside_nemo_rls_filter_stops_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later trees say -inf there: the ratio would be infinite."""
    context, data = scored_step(policy__generation__top_p=0.9)
    filtered = torch.zeros(ROWS, WIDTH)
    filtered[:, 0] = -torch.inf  # nobody samples a prompt
    monkeypatch.setattr(TinyPolicy, "get_logprobs", lambda self, data, timer: {"logprobs": filtered})
    policy = policy_of(context, teacher=teacher_of(VOCABULARY))
    assert torch.equal(policy.get_logprobs(data)["logprobs"], filtered)
    filtered[1, 3] = -torch.inf
    with pytest.raises(ContractError, match=r"-inf at 1 sampled tokens; .*uecr\.filters=paper"):
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
    context, data = scored_step(uecr__method=METHOD | {"name": "sparse"}, policy__train_global_batch_size=3)
    data = estimate(context, data)
    kept = context.outcome.advantages.loss_mask_BT
    kept[1] = False
    with pytest.raises(LookupError):
        policy_of(context).train(data, None)
    assert torch.equal(trained[0]["token_mask"], kept.float())
    assert trained[0]["sample_mask"].tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert trained[0][FIRST_STEP_COLUMN].tolist() == [1.0] * 3 + [0.0] * 3
    assert torch.equal(data["token_mask"], context.scores.token_mask_BS)  # NeMo-RL's own batch is as it was


def rows_of(*kinds: str) -> dict[str, Any]:
    """What the data loader gives: a prompt of two tokens for each kind, repeated for its responses."""
    prompts = {"b": [1, 2], "a": [3, 4]}
    return {
        "message_log": [[{"token_ids": torch.tensor(prompts.get(kind, [5, 6]))}] for kind in kinds],
        "extra_env_info": [{"kind": kind} for kind in kinds],
        "task_name": ["math"] * len(kinds),
    }


def test_each_row_is_scored_by_its_problems_teacher() -> None:
    """Rows are known by their prompts, each teacher loads once, and the estimator compares with the problems.

    Only the teacher b has columns to drop.
    """
    context, data = scored_step()
    context.tokenizer = SimpleNamespace(get_vocab=lambda: {str(token): token for token in range(VOCABULARY)})
    ids, events = data["input_ids"], list[str]()
    ids[:, :2] = torch.tensor([[1, 2], [3, 4]])[[0, 0, 0, 1, 1, 1]]
    a, b = teacher_of(VOCABULARY, events), teacher_of(12, events)
    context.routes = Routes(RoutingConfig(key="kind"), ("a", "b"))
    context.routes.learn(rows_of("b", "a"))
    policy_of(context, a=a, b=b).get_logprobs(data)
    assert (context.scores.teachers, events) == (
        ["b"] * 3 + ["a"] * 3, ["teacher on", "teacher scores", "teacher off"] * 2,
    )  # fmt: skip
    found = context.scores.teacher
    assert_close(found.logp_BT, torch.cat((logp_of(b.model, ids[:3]), logp_of(a.model, ids[3:]))))
    assert found.dropped_BT.isnan().all(dim=1).tolist() == [False] * 3 + [True] * 3
    estimate(context, data, **rows_of(*"bbbaaa"))
    with pytest.raises(ContractError, match="scored by the wrong teachers"):
        estimate(context, data, **rows_of(*"bbbbbb"))
    ids[4, 0] = 8
    with pytest.raises(ContractError, match="the prompt of row 4 is not one that the data loader gave"):
        policy_of(context, a=a, b=b).get_logprobs(data)


def test_a_problem_without_a_teacher_is_named_when_it_is_drawn() -> None:
    routes = Routes(RoutingConfig(key="kind"), ("a", "b"))
    with pytest.raises(DataError, match="'c' under 'kind'"):
        routes.learn(rows_of("a", "c"))
    by_task = Routes(RoutingConfig(key="task_name"), ("math", "code"))
    by_task.learn(rows_of("a"))
    assert by_task.of_rows(rows_of("a", "b")) == ["math", "math"]
    with pytest.raises(DataError, match="one teacher per prompt"):
        by_task.learn(rows_of("a") | {"task_name": ["code"]})


# -- rows and groups -------------------------------------------------------------------------------------------------


def test_a_group_is_a_run_of_rows() -> None:
    """Rows of NeMo-Gym have no numbers; those of several loaders share them; two draws of one prompt stay apart."""
    prompts, kept = torch.tensor([[1], [1], [1], [1]]), torch.ones(4, dtype=torch.bool)
    assert groups_of_rows(prompts, kept, 2).tolist() == [0, 0, 1, 1]
    prompts[1] = 2
    with pytest.raises(BatchFactsError, match="4 rows are not whole runs of 2 responses"):
        groups_of_rows(prompts, kept, 2)
    kept[1] = False  # a prompt that was too long: what NeMo-RL calls its prompt has sampled tokens
    assert groups_of_rows(prompts, kept, 2).tolist() == [0, 0, 1, 1]
    with pytest.raises(BatchFactsError, match="4 rows"):
        groups_of_rows(prompts, kept, 3)


def test_a_problem_is_named_by_number_and_by_task_where_there_are_several() -> None:
    group = torch.tensor([0, 0, 1, 1])
    assert problems_of_rows({}, group, numbered=True) == [0, 0, 1, 1]
    numbers = {"idx": [7, 7, 7, 7]}
    assert problems_of_rows(numbers | {"task_name": ["math"] * 4}, group, numbered=True) == [7, 7, 7, 7]
    tasks = {"task_name": ["math", "math", "code", "code"]}
    assert problems_of_rows(numbers | tasks, group, numbered=True) == ["math 7", "math 7", "code 7", "code 7"]
    # The asynchronous loop's rollout writes the row's place over the number; our data set has noted it elsewhere.
    about = {"idx": [0, 1, 2, 3], "extra_env_info": [{PROBLEM: 7}, {PROBLEM: 7}, {}, None]}
    assert problems_of_rows(about, group, numbered=False) == [7, 7, 1, 1]


def test_the_filter_of_responses_shrinks_the_mask_and_nothing_else(trained: list[Any]) -> None:
    """NeMo-RL leaves rows out of the loss between the scores and the advantages; their groups keep them."""
    context, data = scored_step()
    whole = estimate(context, data)["advantages"]
    left = data["token_mask"].clone()
    left[1] = 0
    made = estimate(context, data | {"token_mask": left})
    assert torch.equal(made["advantages"], whole)
    columns = made | {"token_mask": data["token_mask"], "sample_mask": torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0])}
    with pytest.raises(LookupError):
        policy_of(context).train(columns, None)
    with pytest.raises(ContractError, match=r"^sample_mask changed"):
        policy_of(context).train(columns | {"sample_mask": torch.ones(ROWS)}, None)
    left[2, 3] = 0  # a part of a row is another thing
    with pytest.raises(ContractError, match=r"^the token mask changed"):
        estimate(context, data | {"token_mask": left})


def test_padded_rows_fill_the_micro_batches_of_every_rank() -> None:
    """Without packing NeMo-RL cuts a rank's rows into micro-batches of one size, and leaves out what is over."""
    layout = {"use_dynamic_batches": False, "data_parallel_size": 2, "cfg": {"logprob_batch_size": 4}}
    assert upstream.row_multiple(SimpleNamespace(use_sequence_packing=True, **layout)) == 2
    assert upstream.row_multiple(SimpleNamespace(use_sequence_packing=False, **layout)) == 8


def test_where_vllm_has_gpus_of_its_own_the_student_leaves_its_own_to_the_teacher() -> None:
    apart = {"policy__generation__colocated": {"enabled": False}}
    context, data = scored_step(**apart)
    policy = policy_of(context, teacher=teacher_of(VOCABULARY))
    policy._teachers["teacher"].events = policy.events
    policy.prepare_for_lp_inference()
    policy.get_logprobs(data)
    assert policy.events == [
        "room to score", "offload_after_refit", "teacher on", "teacher scores", "teacher off", "student on",
        "student scores",
    ]  # fmt: skip
