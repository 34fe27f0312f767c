"""Each value of a configuration reaches the place that reads it, and each score the column it is for."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.errors import InvariantError
from nemo_uecr.nemo import launcher, telemetry, upstream
from nemo_uecr.nemo.columns import ModelParallel, score_columns
from nemo_uecr.nemo.context import StepContext, StepScores
from nemo_uecr.nemo.contract import Scores
from nemo_uecr.nemo.errors import BatchFactsError, ContractError
from nemo_uecr.nemo.estimator import UecrEstimator
from nemo_uecr.nemo.extremes import Largest
from nemo_uecr.nemo.launcher import run_spec
from nemo_uecr.nemo.layout import MicroBatch
from nemo_uecr.nemo.loss import PREFIX
from nemo_uecr.nemo.parts import SetUp
from nemo_uecr.nemo.policy import make_uecr_policy
from nemo_uecr.nemo.request import ScoreRequest, row_hash
from nemo_uecr.nemo.translate import master_config
from tests.config.test_nemo import CONFIGS, GIVEN
from tests.nemo_backend.test_preflight import world

BASE = CONFIGS / "uecr_qwen3_1p7b.yaml"
#: Every number another, so that none can stand in another's place.
VALUES = [
    "rollout.temperature=0.61", "rollout.top_p=0.83", "rollout.top_k=17", "train.learning_rate=3e-6",
    "loss.clip_low=0.11", "loss.clip_high=0.29", "loss.reference_kl=0.007", "train.weight_decay=0.03",
    "train.max_grad_norm=0.7", "train.betas=[0.8,0.97]",
]  # fmt: skip
PROMPTS, GROUP, WIDTH = 2, 3, 6
ROWS = PROMPTS * GROUP


def configuration(*changes: str) -> Any:
    return load_nemo_config(BASE, [*GIVEN["1p7b"], *VALUES, *changes])


def test_every_number_arrives() -> None:
    native = master_config(configuration(), prompt_file="p")
    generation, megatron = native["policy"]["generation"], native["policy"]["megatron_cfg"]
    assert (generation["temperature"], generation["top_p"], generation["top_k"]) == (0.61, 0.83, 17)
    optimizer, schedule = megatron["optimizer"], megatron["scheduler"]
    assert (optimizer["lr"], optimizer["min_lr"], optimizer["weight_decay"]) == (3e-6, 3e-6, 0.03)
    assert (optimizer["adam_beta1"], optimizer["adam_beta2"], optimizer["clip_grad"]) == (0.8, 0.97, 0.7)
    assert (schedule["start_weight_decay"], schedule["end_weight_decay"]) == (0.03, 0.03)
    assert native["policy"]["uecr"]["temperature"] == 0.61
    loss = native["loss_fn"]
    assert (loss["ratio_clip_min"], loss["ratio_clip_max"], loss["reference_policy_kl_penalty"]) == (0.11, 0.29, 0.007)
    spec = run_spec(configuration())
    assert (spec.temperature, spec.clip_low, spec.clip_high, spec.kl_coef) == (0.61, 0.11, 0.29, 0.007)


@pytest.mark.parametrize("name", ["uecr", "grpo"])
def test_what_would_change_the_method_is_off(name: str) -> None:
    """A baseline of the others of a group, prompts drawn again, scoring that is skipped, a second clip of the ratio."""
    native = master_config(configuration(f"method.name={name}"), prompt_file="p")
    grpo, loss = native["grpo"], native["loss_fn"]
    assert grpo["use_leave_one_out_baseline"] is False
    assert grpo["adv_estimator"]["use_leave_one_out_baseline"] is False
    assert grpo["use_dynamic_sampling"] is False
    assert loss["force_on_policy_ratio"] is False
    assert loss["token_level_loss"] is True
    assert loss["ratio_clip_c"] is None


def small(*changes: str) -> Any:
    """A step of two prompts, three responses each."""
    return run_spec(
        configuration(
            "rollout.prompts_per_step=2", "rollout.responses_per_prompt=3", "train.minibatch_responses=6",
            "cluster.gpus_per_node=1", *changes,
        )
    )  # fmt: skip


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
    context.put_scores(StepScores(student, teacher, mask, data["sample_mask"], ids))
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


@pytest.mark.parametrize("error", [0.51, math.inf, math.nan])
def test_a_first_ratio_off_one_stops_the_run(error: float) -> None:
    context, _ = estimated()
    result = {"all_mb_metrics": {f"{PREFIX}first_ratio_error_max": [0.1, error, 0.1]}}
    with pytest.raises(InvariantError, match=r"expected at most tolerances\.first_ratio=0\.5"):
        telemetry._policy(context, result)


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
    monkeypatch.setattr(launcher.verifier_environment, "register", lambda: None)
    monkeypatch.setattr(upstream, "prepare_run", lambda native: SimpleNamespace(tokenizer=None))
    monkeypatch.setattr(upstream, "set_up", lambda *parts: made)
    monkeypatch.setattr(upstream, "loss_markers", lambda: (None, None))
    monkeypatch.setattr(upstream, "substitutions", lambda **given: contextlib.nullcontext())
    config = load_nemo_config(BASE, world(tmp_path))
    (tmp_path / "run").mkdir()
    records = {"origins": {}, "objective": "", "version": "0.7.0"}
    stop, completed = launcher._run(config, None, run_spec(config), None, None, records)
    assert (found, completed, stop.asked) == ([7], 7, False)
