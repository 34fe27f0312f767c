"""Every method in NeMo-RL's real training loop, and GRPO against NeMo-RL's own."""

from __future__ import annotations

import importlib
import math

import pytest
import torch

from nemo_uecr.core.methods import METHODS
from nemo_uecr.stopping import StopRequest
from nemo_uecr.telemetry.metric_table import METRICS
from tests.nemo.loop import GROUP, NATIVE, PROMPTS, config_of, train_native, train_ours
from tests.nemo.tiny_world import TinyModel, TinyProblems, TinyTeacher

pytestmark = pytest.mark.usefixtures("ray_cluster")


def teacher_of(method: str) -> TinyTeacher | None:
    return TinyTeacher(TinyModel(9), []) if METHODS[method].needs_teacher else None


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.needs_initial])
def test_every_method_trains(method: str) -> None:
    run = train_ours(config_of(method), steps=2, teacher=teacher_of(method))
    assert len(run.metrics) == 2
    assert all(math.isfinite(loss) for loss in run.policy.losses)
    last = run.metrics[-1]
    assert last["count/global_steps"] == 2.0
    assert last["count/trajectories"] == PROMPTS * GROUP
    assert last["policy/first_ratio_error"] == 0.0
    assert last["token_mult_prob_error"] == pytest.approx(1.0, abs=1e-5)
    prefixes = {key.partition("/")[0] for key in METRICS}
    named = {name for name in last if "/" in name and name.partition("/")[0] in prefixes}
    # NeMo-RL logs three numbers of its own under `advantages/`, which is another prefix than ours.
    assert named <= set(METRICS), sorted(named - set(METRICS))
    assert ("teacher/gap_mean" in last) == METHODS[method].needs_teacher


@pytest.mark.parametrize("kl_coef", [0.0, 0.05])
def test_without_teacher_it_is_native_grpo(kl_coef: float) -> None:
    config = config_of("grpo", "method.std=sample", *NATIVE, f"loss.reference_kl={kl_coef}")
    ours, native = train_ours(config, steps=2, teacher=None), train_native(config, steps=2)
    for mine, theirs in zip(ours.policy.losses, native.policy.losses, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)
    for mine, theirs in zip(ours.policy.gradients, native.policy.gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)
    assert [m["reward"] for m in ours.metrics] == [m["reward"] for m in native.metrics]


def test_the_papers_form_without_kl_has_native_gradients() -> None:
    """With the KL off the only difference left is our own arithmetic, which must not show."""
    config = config_of("grpo", "method.std=sample", "loss.reference_kl=0")
    ours, native = train_ours(config, steps=2, teacher=None), train_native(config, steps=2)
    for mine, theirs in zip(ours.policy.gradients, native.policy.gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


def test_the_papers_form_with_kl_has_the_native_loss_but_another_gradient() -> None:
    """At the first step the reference is the policy: KL and its plain gradient are 0; later NeMo-RL's differs."""
    config = config_of("grpo", "method.std=sample", "loss.reference_kl=0.5")
    ours, native = train_ours(config, steps=2, teacher=None), train_native(config, steps=2)
    assert ours.policy.losses[1] == pytest.approx(native.policy.losses[1], abs=1e-5)
    assert float((ours.policy.gradients[1] - native.policy.gradients[1]).abs().max()) > 1e-6


def test_a_request_ends_the_real_loop_after_the_step() -> None:
    stop = StopRequest()
    stop.ask("a test")
    assert len(train_ours(config_of("grpo"), steps=4, teacher=None, stop=stop).metrics) == 1


def test_order_of_a_step() -> None:
    run = train_ours(config_of("uecr"), steps=1, teacher=teacher_of("uecr"))
    assert run.policy.events == [
        "generation sleeps", "teacher on", "teacher scores", "teacher off", "student on", "student scores",
        "student trains",
    ]  # fmt: skip
    assert run.teacher is not None
    assert [request.temperatures for request in run.teacher.requests] == [(1.0,)]
    assert run.teacher.requests[0].entropy


def test_several_optimizer_steps_a_batch() -> None:
    config = config_of("uecr", "train.minibatch_responses=8")
    run = train_ours(config, steps=2, teacher=teacher_of("uecr"))
    last = run.metrics[-1]
    assert len(run.policy.losses) == 8
    assert last["count/optimizer_steps"] == 8.0
    assert last["policy/first_ratio_error"] == 0.0
    assert last["policy/ratio_max"] > 1.0
    # The logged loss is the mean over the four optimizer steps of the batch.
    assert last["policy/loss"] == pytest.approx(sum(run.policy.losses[4:]) / 4, abs=1e-6)


def test_equal_prompts_stay_apart() -> None:
    """Problems 0 and 1 have the same tokens: the paper's grouping keeps them apart, NeMo-RL's merges them."""
    twins = TinyProblems(seed_of=lambda index: max(index, 1))
    ours = train_ours(config_of("uecr"), steps=1, teacher=teacher_of("uecr"), problems=twins)
    merged = train_ours(config_of("uecr", *NATIVE), steps=1, teacher=teacher_of("uecr"), problems=twins)
    assert ours.metrics[0]["group/count"] == PROMPTS
    assert merged.metrics[0]["group/count"] == PROMPTS - 1


def test_substitutions_are_taken_back() -> None:
    """Every name of the loop's module, however the block ends; the names are read from the module, not from a list."""
    from nemo_uecr.nemo import upstream

    grpo = importlib.import_module("nemo_rl.algorithms.grpo")
    before = dict(vars(grpo))

    def fail_inside() -> None:
        with upstream.substitutions(
            estimator=object, colocated_worker_groups=3, evaluation=lambda generation, step: ({}, {}),
            stop=StopRequest(),
        ):  # fmt: skip
            changed = {name for name, value in vars(grpo).items() if before.get(name) is not value}
            assert changed == {"_create_advantage_estimator", "RayVirtualCluster", "TimeoutChecker", "validate"}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_inside()
    assert {name for name, value in vars(grpo).items() if before.get(name) is not value} == set()
