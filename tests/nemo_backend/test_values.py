"""Each score of a step reaches the column it is for, and no column changes on its way to the training."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.nemo import launcher, upstream
from nemo_uecr.nemo.columns import ModelParallel, score_columns
from nemo_uecr.nemo.context import StepContext, StepScores, run_spec
from nemo_uecr.nemo.contract import Scores
from nemo_uecr.nemo.errors import BatchFactsError, ContractError
from nemo_uecr.nemo.estimator import UecrEstimator
from nemo_uecr.nemo.extremes import Largest
from nemo_uecr.nemo.layout import MicroBatch
from nemo_uecr.nemo.parts import SetUp
from nemo_uecr.nemo.policy import make_uecr_policy
from nemo_uecr.nemo.request import ScoreRequest, row_hash
from tests.config.test_nemo import CONFIGS, GIVEN
from tests.nemo_backend.test_preflight import world

BASE = CONFIGS / "uecr_qwen3_1p7b.yaml"
PROMPTS, GROUP, WIDTH = 2, 3, 6
ROWS = PROMPTS * GROUP


def small(*changes: str) -> Any:
    """A step of two prompts, three responses each."""
    given = [
        "rollout.prompts_per_step=2", "rollout.responses_per_prompt=3", "train.minibatch_responses=6",
        "cluster.gpus_per_node=1", "rollout.temperature=0.61",
    ]  # fmt: skip
    return run_spec(load_nemo_config(BASE, [*GIVEN["1p7b"], *given, *changes]))


def scored_step() -> tuple[StepContext, dict[str, torch.Tensor]]:
    """A context after scoring, every column another."""
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
    found = row_hash(ids, data["input_lengths"])
    student = Scores((column(), column()), -column(), found)
    teacher = Scores((column(),), -column(), found)
    context = StepContext(small(), completed_steps=0, tokenizer=None)
    context.scores = StepScores(student, teacher, mask, data["sample_mask"], ids)
    return context, data


def estimated(**more: torch.Tensor) -> tuple[StepContext, dict[str, torch.Tensor]]:
    context, data = scored_step()
    rollouts = {"idx": [4] * GROUP + [7] * GROUP, "truncated": torch.zeros(ROWS)}
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    handed = context.scores.student.logp[0]
    advantages = UecrEstimator(context).compute_advantage(
        data["input_ids"], rewards, data["token_mask"], rollouts, handed, None, **more
    )
    return context, data | {"prev_logprobs": handed, "advantages": advantages}


def test_a_response_that_nemo_rl_calls_invalid_is_not_counted_in_its_group_unseen() -> None:
    """Later versions say which responses count in their group's baseline."""
    valid = torch.ones(ROWS)
    estimated(valid_mask=valid)
    valid[2] = 0
    with pytest.raises(BatchFactsError, match="leaves 1 of 6 responses out"):
        estimated(valid_mask=valid)


def test_the_record_has_the_gap_at_temperature_one_and_the_teachers_entropy() -> None:
    context, _ = estimated()
    batch, scores = context.outcome.batch, context.scores
    assert scores.teacher is not None
    assert batch.old_logp_BT is scores.student.logp[1]
    assert batch.teacher_logp_BT is scores.teacher.logp[0]
    assert batch.teacher_entropy_BT is scores.teacher.entropy_BS


class Base:
    """NeMo-RL's policy as far as training asks it."""

    data_parallel_size = 1
    cfg = {"sequence_packing": {"enabled": True}, "dynamic_batching": {"enabled": False}}  # noqa: RUF012

    def train(self, data: Any, loss_fn: Any, **given: Any) -> Any:
        raise LookupError("it trained")


def test_the_loop_gets_the_column_at_the_rollout_temperature() -> None:
    """And the record keeps the one at temperature 1 beside it, from the same forward."""
    logits = torch.randn(ROWS, WIDTH, 9, generator=torch.Generator().manual_seed(1))
    _, data = scored_step()

    class Scorer:
        data_parallel_size = 1

        def score_tokens(self, data: Any, request: ScoreRequest) -> dict[str, Any]:
            micro = MicroBatch(data["input_ids"], data["input_lengths"], None)
            answer = score_columns(logits, micro, request, ModelParallel(None, None))
            return answer | {"terms": [request.terms] * ROWS}

    context = StepContext(small("student.vocabulary=9"), completed_steps=0, tokenizer=None)
    policy = make_uecr_policy(Scorer)(context=context, teacher=None)
    handed = policy.get_logprobs(data)["logprobs"]

    def by_definition(temperature: float) -> torch.Tensor:
        logp = (logits / temperature).log_softmax(dim=-1)[:, :-1]
        return torch.nn.functional.pad(logp.gather(2, data["input_ids"][:, 1:, None])[..., 0], (1, 0))

    torch.testing.assert_close(handed, by_definition(0.61), atol=1e-5, rtol=0)
    torch.testing.assert_close(context.scores.student.logp[1], by_definition(1.0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["prev_logprobs", "advantages", "token_mask", "sample_mask", "input_ids"])
def test_columns_that_changed_before_training_stop_it(name: str) -> None:
    context, data = estimated()
    policy = make_uecr_policy(Base)(context=context, teacher=None)
    with pytest.raises(LookupError, match="it trained"):
        policy.train(data, None)
    data[name] = data[name].clone()
    data[name][1] += 1
    with pytest.raises(ContractError, match=name if name != "input_ids" else "training rows"):
        policy.train(data, None)


@pytest.mark.parametrize("values", [(0.1, math.nan, 0.1), (math.nan, 0.1), (0.1, math.nan)])
def test_a_nan_ratio_survives_the_summing_of_micro_batches(values: tuple[float, ...]) -> None:
    assert math.isnan(sum(map(Largest, values)))
    assert sum(map(Largest, (0.1, 0.3, 0.2))) == 0.3


def test_a_continued_run_counts_on_from_its_checkpoint(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedules of alpha and the seeds of the shuffles are functions of the completed steps, here seven."""
    made = SetUp(None, None, None, SimpleNamespace(), None, {"total_steps": 7}, SimpleNamespace(checkpointing={}), 7)
    found: list[int] = []
    real = launcher.StepContext

    def watched(*args: Any, **given: Any) -> StepContext:
        context = real(*args, **given)
        monkeypatch.setattr(upstream, "run_loop", lambda *loop: found.append(context.completed_steps))
        return context

    monkeypatch.setattr(launcher, "StepContext", watched)
    monkeypatch.setattr(upstream, "register_environment", lambda name, actor: None)
    monkeypatch.setattr(upstream, "prepare_run", lambda native: SimpleNamespace(tokenizer=None))
    monkeypatch.setattr(upstream, "set_up", lambda *parts: made)
    monkeypatch.setattr(upstream, "loss_markers", lambda: (None, None))
    monkeypatch.setattr(upstream, "substitutions", lambda **given: contextlib.nullcontext())
    config = load_nemo_config(BASE, world(tmp_path))
    (tmp_path / "run").mkdir()
    records = {"origins": {}, "objective": "", "version": "0.7.0"}
    stop, completed = launcher._run(config, None, None, records)
    assert (found, completed, stop.asked) == ([7], 7, False)
