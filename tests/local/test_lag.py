"""Steps on responses of an older policy: who draws and scores them, what the ratio is to, how a run goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.cli.main import entry_point
from nemo_uecr.core.loss import importance_ratio
from nemo_uecr.errors import ConfigError
from nemo_uecr.generation.engines import Decoding
from nemo_uecr.hosted_teacher.client import TeacherServerError
from nemo_uecr.local.rollout import draw, step_prompts
from nemo_uecr.local.scores import score_policy
from nemo_uecr.local.sequences import Sequences, encoded_problems
from nemo_uecr.local.teachers import Teachers
from nemo_uecr.reproducible import derive
from nemo_uecr.responses.table import read_responses
from nemo_uecr.steps.metrics import lag_metrics
from tests.local import tiny
from tests.local.updates import LENGTHS, config_of, inputs_for, ragged, updated

LAG, STEPS = 2, 4


@pytest.fixture(scope="module")
def lagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.run(tmp_path_factory.mktemp("lag") / "run", *tiny.every(), f"train.steps={STEPS}", f"rollout.lag={LAG}")


def saved(folder: Path, step: int) -> Path:
    return folder / "batches" / f"step-{step:06d}.parquet"


def test_the_first_step_is_that_of_a_run_without_a_lag(lagged: Path, trained: Path) -> None:
    """Its policy is the one that it updates: the same bits, and two more metrics."""
    with_lag, without = tiny.metrics(lagged)[0], tiny.metrics(trained)[0]
    assert with_lag == without | {"policy/behind_kl": 0.0, "policy/lag": 0.0}
    ours, theirs = (read_responses(saved(folder, 1)) for folder in (lagged, trained))
    assert set(ours.names) == {*theirs.names, "generator_logp_rollout"}
    for name in theirs.names:
        assert ours.column(name) == theirs.column(name)
    assert ours.column("generator_logp_rollout") == theirs.column("old_logp_rollout")
    for path in ("evaluations/step-000001.parquet", "checkpoints/step-000001/model.safetensors"):
        assert (lagged / path).read_bytes() == (trained / path).read_bytes()


def test_each_step_trains_on_responses_of_the_policy_of_so_many_steps_ago(lagged: Path) -> None:
    """Drawn and scored by that policy's own checkpoint; everything else is scored by the one that is updated."""
    config = tiny.configured(lagged, f"rollout.lag={LAG}").config
    prompts = encoded_problems(config, tiny.tokenizer(), str)[0]
    for step in range(1, STEPS + 1):
        table, policy = read_responses(saved(lagged, step)), max(0, step - 1 - LAG)
        assert table.column("checkpoint") == [policy] * 8
        own = step_prompts(prompts, config, step)
        models = [
            tiny.load(lagged / "checkpoints" / f"step-{number:06d}" if number else tiny.STUDENT)
            for number in (policy, step - 1)
        ]
        seeds = [derive(config.run.seed, "rollout", step, row) for row in range(8)]
        rollout = config.rollout
        decoding = Decoding(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_response_tokens)
        sequences = Sequences(own, draw(models[0], own, seeds, decoding, microbatch=8))
        assert table.column("token_ids") == [list(response.token_ids) for response in sequences.responses]
        micro_rows = [rows for part in sequences.micro_rows(minibatch=4, microbatch=2) for rows in part]
        mu, pi = (
            score_policy(model, sequences, micro_rows, rollout_temperature=rollout.temperature, entropy=False)
            for model in models
        )
        mask_BT = sequences.mask_BT
        expected = {"generator_logp_rollout": mu.rollout_logp_BT, "old_logp_rollout": pi.rollout_logp_BT}
        for name, logp_BT in (expected | {"old_logp": pi.logp_BT}).items():
            assert torch.equal(table.padded(name)[mask_BT], logp_BT[mask_BT]), (name, step)


def test_metrics_tell_the_lag_and_what_it_does(lagged: Path) -> None:
    found = tiny.metrics(lagged)
    assert [record["policy/lag"] for record in found] == [0, 1, 2, 2]
    assert [record["policy/first_ratio_error"] for record in found] == [0.0] * STEPS
    assert all(record["policy/behind_kl"] > 1e-6 for record in found[1:])
    assert found[3]["policy/approx_kl"] != pytest.approx(found[3]["policy/behind_kl"], rel=1e-3)


def test_saved_steps_replay(lagged: Path) -> None:
    for step in (1, 3, 4):
        assert entry_point(["replay", str(saved(lagged, step)), "--check"]) == 0


def test_the_clip_acts_on_the_ratio_to_the_policy_that_sampled() -> None:
    """It has sampled each token half as often: ratios of 2 and of 1 / 2, of which the clip stops one of each sign."""
    model, sequences = tiny.load(), ragged()
    older, config = config_of("rollout.lag=1"), config_of()
    batch, advantages = inputs_for(model, config, sequences)
    away_BT = torch.where(torch.arange(sequences.width) % 2 == 0, 2.0, 0.5).log().expand(len(LENGTHS), -1)
    mu_BT = batch.record.student.rollout_logp_BT - away_BT
    behind = replace(batch, record=replace(batch.record, generator_logp_BT=mu_BT))
    outcome, gradient = updated(model, (behind, advantages), older)
    mask_BT = sequences.mask_BT
    row_N, column_N = outcome.place_N2.T
    assert torch.allclose(outcome.ratio_N.log(), away_BT[row_N, column_N], atol=1e-5)
    assert torch.equal(outcome.before_N, torch.ones_like(outcome.before_N))
    assert torch.equal(outcome.first_ratio_N, outcome.before_N)
    # min(r A, clip(r) A): above 1 + eps an advantage above 0 has no gradient, below 1 - eps one below 0.
    stopped_BT = (away_BT > 0) == (advantages.advantage_BT > 0)
    by_hand_BT = (advantages.advantage_BT * away_BT.exp()).masked_fill(stopped_BT | ~mask_BT, 0.0)
    _, expected = updated(model, (batch, replace(advantages, advantage_BT=by_hand_BT)), config)
    assert torch.allclose(gradient, expected, atol=1e-6)
    assert float(expected.abs().max()) > 1e-3
    metrics = lag_metrics(outcome.ratio_N, outcome.before_N, 1, step=2)
    ratio_N = importance_ratio(away_BT, torch.zeros_like(away_BT), mask_BT)[mask_BT].double()
    assert metrics == {
        "policy/behind_kl": pytest.approx(float((ratio_N - 1 - ratio_N.log()).mean()), rel=1e-4),
        "policy/lag": 1.0,
    }


def test_a_generator_column_without_a_lag_does_not_enter_the_ratio() -> None:
    model, sequences, config = tiny.load(), ragged(), config_of()
    batch, advantages = inputs_for(model, config, sequences)
    told = replace(batch, record=replace(batch.record, generator_logp_BT=batch.record.student.rollout_logp_BT - 1.0))
    (ours, gradient), (theirs, expected) = (updated(model, (each, advantages), config) for each in (told, batch))
    assert torch.equal(gradient, expected)
    assert torch.equal(ours.ratio_N, theirs.ratio_N)


def test_a_step_that_is_far_behind_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    far, near = torch.tensor([1.2, 0.8]), torch.tensor([1.01, 0.99])
    lag_metrics(near, torch.ones(2), 1, step=3)
    assert caplog.text == ""
    lag_metrics(far, torch.ones(2), 1, step=3)
    assert "step 3: KL(mu || pi) = 0.0204 nats per token" in caplog.text
    assert "lower rollout.lag or train.learning_rate" in caplog.text


def test_a_reward_that_reads_the_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def f(completions, trainer_state):\n    return [0.0 for _ in completions]\n")
    reward = f"reward={tmp_path}/own.py:f"
    with pytest.raises(ConfigError, match=r"reward f asks for the step .* take rollout\.lag=0"):
        tiny.run(tmp_path / "run", reward, "rollout.lag=1")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_what_is_drawn_survives_a_step_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher's server fails after the responses of a later step were drawn: the resumed run trains on the same."""
    config = ("train.steps=4", f"rollout.lag={LAG}")
    whole = tiny.run(tmp_path / "whole", *config)
    score, calls = Teachers.score, iter((False, False, True))

    def failing(*args: Any, **given: Any) -> Any:
        if next(calls):
            raise TeacherServerError("the server is gone")
        return score(*args, **given)

    with monkeypatch.context() as patch:
        patch.setattr(Teachers, "score", failing)
        with pytest.raises(TeacherServerError):
            tiny.run(tmp_path / "run", *config)
    table = read_responses(tmp_path / "run" / "checkpoints" / "step-000002" / "ahead.parquet")
    assert table.about["steps"] == [3, 4, 5]  # of which step 3 has failed
    assert table.column("checkpoint") == [0] * 8 + [1] * 8 + [2] * 8
    tiny.run(tmp_path / "run", *config, resume=True)
    assert tiny.metrics(tmp_path / "run") == tiny.metrics(whole)
