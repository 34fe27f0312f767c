"""The update: accumulation, denominators, surrogates, reference KL, the overlong filter, and the ratio of 1."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from nemo_uecr.config.schema import Config
from nemo_uecr.core.methods import Advantages
from nemo_uecr.errors import InvariantError
from nemo_uecr.local.token_model import TokenModel
from nemo_uecr.local.update import build_optimizer, check_ratios, update, warmed_rate
from tests.local import tiny
from tests.local.updates import LENGTHS, Inputs, config_of, inputs_for, measured, ragged, updated


@pytest.fixture
def student() -> TokenModel:
    return tiny.load()


def prepared(student: TokenModel, *overrides: str) -> tuple[Inputs, Config]:
    """Inputs of one update of ragged responses, and its configuration."""
    config = config_of(*overrides)
    return inputs_for(student, config, ragged()), config


def test_gradient_is_that_of_the_written_out_loss(student: TokenModel) -> None:
    """``-sum A log pi / tokens`` at ratio 1, written out with log_softmax over the whole vocabulary in float64.

    Ragged micro-batches, so a mean of their means would be wrong.
    """
    inputs, config = prepared(student, "train.microbatch_responses=2")
    batch, advantages = inputs
    sequences = batch.sequences
    outcome, found = updated(student, inputs, config)
    module = copy.deepcopy(student.module).double()
    total = torch.zeros((), dtype=torch.float64)
    for row, (prompt, response) in enumerate(zip(sequences.prompts, sequences.responses, strict=True)):
        ids = torch.tensor([prompt.token_ids + response.token_ids])
        logits = module(input_ids=ids).logits[0, len(prompt.token_ids) - 1 : -1] / config.rollout.temperature
        logp = logits.log_softmax(-1).gather(1, torch.tensor(response.token_ids).unsqueeze(1))[:, 0]
        advantage = advantages.advantage_BT[row, : len(response.token_ids)].double()
        total = total - (advantage * logp).sum()
    (total / sum(LENGTHS)).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None])
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert outcome.grad_norm[0] == pytest.approx(float(expected.norm()), rel=1e-5)


def test_each_minibatch_has_its_own_token_count(student: TokenModel) -> None:
    """Lengths 3, 7, 1, 5 = 16 tokens and 2, 6, 4, 4 = 16; with -1 everywhere as advantage the loss is +1 for both."""
    sequences = ragged(lengths=(3, 7, 1, 5, 1, 1, 1, 2))
    config = config_of("train.minibatch_responses=4", "train.learning_rate=1e-12")
    batch, _ = inputs_for(student, config, sequences)
    outcome, _ = updated(student, (batch, Advantages(-sequences.mask_BT.float())), config)
    # sum of ratios 1 over 16 tokens / 16, then over 5 tokens / 5; a shared denominator of 21 would give 0.76 and 0.24
    assert outcome.loss == pytest.approx([1.0, 1.0], abs=1e-5)
    assert outcome.optimizer_steps == 2
    assert outcome.ratio_N.numel() == 21
    assert outcome.first_ratio_N.numel() == 16


def test_rows_of_similar_length_share_a_forward_pass_and_keep_their_names(student: TokenModel) -> None:
    """Total lengths 8, 9, 10, 8 | 5, 10, 10, 5; a ratio that is off is named by the response that it belongs to."""
    inputs, config = prepared(student, "train.minibatch_responses=4", "train.microbatch_responses=3")
    found = [[rows.tolist() for rows in part] for part in inputs[0].micro_rows]
    assert found == [[[2, 1, 0], [3]], [[5, 6, 4], [7]]]
    inputs[0].record.student.rollout_logp_BT[1, 4] -= 0.5
    outcome, _ = updated(student, inputs, config)
    with pytest.raises(InvariantError, match=r"from 1 by 0.649 at response 1 \(sample 1\) at token 4"):
        check_ratios(outcome, measured(outcome), [f"sample {row}" for row in range(8)], config.tolerances)


def test_reference_kl_enters_once_with_its_coefficient(student: TokenModel) -> None:
    """With the reference 0.5 nats above the policy everywhere: k3 = e^0.5 - 0.5 - 1 = 0.148721."""
    (batch, _), config = prepared(student, "train.learning_rate=1e-12", "loss.reference_kl=0.3")
    record = replace(batch.record, reference_rollout_logp_BT=batch.record.student.rollout_logp_BT + 0.5)
    nothing = Advantages(torch.zeros(record.mask_BT.shape))
    outcome, _ = updated(student, (replace(batch, record=record), nothing), config)
    assert outcome.reference_kl[0] == pytest.approx(0.148721, abs=1e-5)
    assert outcome.loss[0] == pytest.approx(0.3 * 0.148721, abs=1e-5)
    assert outcome.surrogate[0] == 0.0


def test_overlong_filter_takes_tokens_out_of_numerator_and_denominator(student: TokenModel) -> None:
    filtering = ("train.learning_rate=1e-12", "train.microbatch_responses=2", "rollout.overlong_filter=true")
    (batch, _), config = prepared(student, *filtering)
    truncated_B = torch.arange(8) < 4  # two whole micro-batches and nothing of the rest
    batch = replace(batch, record=replace(batch.record, truncated_B=truncated_B))
    advantage_BT = torch.where(truncated_B, 100.0, -1.0).unsqueeze(1) * batch.record.mask_BT
    outcome, _ = updated(student, (batch, Advantages(advantage_BT)), config)
    assert outcome.loss[0] == pytest.approx(1.0, abs=1e-5)
    assert outcome.ratio_N.numel() == sum(LENGTHS[4:])


def test_minibatch_without_tokens_takes_no_step(student: TokenModel) -> None:
    (batch, advantages), config = prepared(student, "train.minibatch_responses=4", "train.microbatch_responses=4")
    mask_BT = batch.record.mask_BT.clone()
    mask_BT[:4] = False
    outcome, _ = updated(student, (batch, replace(advantages, loss_mask_BT=mask_BT)), config)
    assert (outcome.optimizer_steps, len(outcome.loss)) == (1, 1)
    assert bool((outcome.first_ratio_N == 1.0).all())
    with pytest.raises(InvariantError, match=r"no token in the loss.*raise rollout\.max_response_tokens"):
        updated(student, (batch, replace(advantages, loss_mask_BT=torch.zeros_like(mask_BT))), config)


def test_gradient_clipping_scales_the_whole_gradient(student: TokenModel) -> None:
    inputs, loose = prepared(student)
    free, whole = updated(student, inputs, loose)
    tight = config_of(f"train.max_grad_norm={free.grad_norm[0] / 4}")
    clipped, quarter = updated(student, inputs, tight)
    assert clipped.grad_norm[0] == free.grad_norm[0]  # reported before clipping
    assert float((4 * quarter - whole).norm() / whole.norm()) < 1e-5


def test_warm_up_is_linear_and_then_constant(student: TokenModel) -> None:
    inputs, config = prepared(student, "train.learning_rate=0.4", "train.warmup_steps=4", "train.minibatch_responses=4")
    assert [warmed_rate(config, done) for done in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert warmed_rate(config_of("train.learning_rate=0.4", "train.warmup_steps=0"), 0) == 0.4
    outcome = update(student, build_optimizer(student, config), *inputs, config, steps_done=1)
    assert outcome.learning_rate == pytest.approx(0.3)  # its two steps are the run's second and third
    assert outcome.optimizer_steps == 3


def test_a_gradient_that_is_not_finite_changes_nothing(student: TokenModel) -> None:
    """A ratio that overflows in row 5 alone, inside a micro-batch of two."""
    inputs, config = prepared(student, "train.microbatch_responses=2")
    inputs[0].record.student.rollout_logp_BT[5, 2] = -1e4
    before = {name: value.clone() for name, value in student.module.state_dict().items()}
    with pytest.raises(InvariantError, match="gradient norm nan at optimizer step 1; expected finite numbers"):
        update(student, build_optimizer(student, config), *inputs, config, steps_done=0)
    assert all(torch.equal(value, before[name]) for name, value in student.module.state_dict().items())


def test_weight_that_is_not_finite_after_the_step_is_named(student: TokenModel) -> None:
    """The optimizer's own state is damaged, so that loss and gradient are finite and one weight is not."""
    inputs, config = prepared(student)
    optimizer = build_optimizer(student, config)
    update(student, optimizer, *inputs, config, steps_done=0)
    parameter = dict(student.module.named_parameters())["model.layers.1.mlp.up_proj.weight"]
    optimizer.state[parameter]["exp_avg"][3, 5] = math.nan
    expected = f"1 of {parameter.numel()} weights of model.layers.1.mlp.up_proj.weight are not finite after optimizer "
    with pytest.raises(InvariantError, match=expected + "step 2; expected finite"):
        update(student, optimizer, *inputs, config, steps_done=1)
