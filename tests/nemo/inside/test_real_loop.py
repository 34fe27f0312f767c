"""Every method in NeMo-RL's real training loop, and GRPO against NeMo-RL's own."""

from __future__ import annotations

import importlib
import math
import time
from typing import Any

import pytest
import torch

from nemo_uecr.core.methods import METHODS
from nemo_uecr.nemo import upstream
from nemo_uecr.stopping import JOB_END, StopRequest
from nemo_uecr.telemetry.metric_table import METRICS
from tests.nemo.inside.loop import GROUP, PROMPTS, run_of, train_native, train_ours
from tests.nemo.inside.tiny_world import TinyModel, TinyProblems, TinyTeacher

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if "initial_logp" not in method.reads])
def test_every_method_trains(method: str) -> None:
    run = train_ours(run_of(method), steps=2)
    assert len(run.metrics) == 2
    assert all(math.isfinite(loss) for loss in run.losses)
    last = run.metrics[-1]
    assert last["count/global_steps"] == 2.0
    assert last["count/trajectories"] == PROMPTS * GROUP
    assert last["policy/first_ratio_error"] == 0.0
    assert last["token_mult_prob_error"] == pytest.approx(1.0, abs=1e-5)
    prefixes = {key.partition("/")[0] for key in METRICS}
    named = {name for name in last if "/" in name and name.partition("/")[0] in prefixes}
    # NeMo-RL logs three numbers of its own under `advantages/`, which is another prefix than ours.
    assert named <= set(METRICS), sorted(named - set(METRICS))
    assert ("teacher/gap_mean" in last) == METHODS[method].needs_teacher()
    assert ("teacher/top20_overlap" in last) == METHODS[method].needs_teacher()


def test_a_teacher_with_more_columns_trains_as_one_with_the_students() -> None:
    """The further columns' weights are on top of those of the teacher without them."""

    class Wider(TinyTeacher):
        def __init__(self, model: TinyModel, events: list[str]) -> None:
            wide = TinyModel(9, vocabulary=model.vocabulary + 6)
            for mine, theirs in zip(wide.parameters(), model.parameters(), strict=True):
                mine.data[: len(theirs)] = theirs.data
            super().__init__(wide, events)

    plain, cut = (train_ours(run_of("uecr"), steps=2, teacher=kind) for kind in (TinyTeacher, Wider))
    assert cut.losses == pytest.approx(plain.losses, abs=1e-6)
    for without, record in zip(plain.metrics, cut.metrics, strict=True):
        assert record.keys() - without.keys() == {"teacher/dropped_mass_mean", "teacher/dropped_mass_max"}
        assert 0 < record["teacher/dropped_mass_mean"] <= record["teacher/dropped_mass_max"] < 1
        assert record["teacher/gap_mean"] == pytest.approx(without["teacher/gap_mean"], abs=1e-6)


def beside_native(*changes: str) -> tuple[Any, Any]:
    """Two steps of our GRPO and of NeMo-RL's own, each on a recipe of its own."""
    given = ["++uecr.method.sample_std=true", *changes]
    return tuple(train(run_of("grpo", *given), steps=2) for train in (train_ours, train_native))  # type: ignore[return-value]


NO_KL = "loss_fn.reference_policy_kl_penalty=0"


@pytest.mark.parametrize(
    "changes",
    [
        ("++uecr.kl=recipe", NO_KL),
        ("++uecr.kl=recipe", "loss_fn.reference_policy_kl_penalty=0.05"),
        ("++uecr.kl=recipe", "loss_fn.reference_policy_kl_penalty=0.05", "loss_fn.reference_policy_kl_type=k2"),
        (NO_KL,),
        (NO_KL, "loss_fn.use_importance_sampling_correction=true"),
        (NO_KL, "loss_fn.ratio_clip_c=3", "loss_fn.ratio_clip_max=0.28"),
        (NO_KL, "loss_fn.sequence_level_importance_ratios=true", "loss_fn.token_level_loss=false"),
        (NO_KL, "loss_fn.token_level_loss=false"),
    ],
    ids=["recipe", "recipe with KL", "k2", "paper", "importance correction", "dual clip", "GSPO", "sequence mean"],
)
def test_without_teacher_it_is_native_grpo(changes: tuple[str, ...]) -> None:
    """Whatever the recipe's loss: NeMo-RL's own computes it."""
    ours, native = beside_native(*changes)
    assert ours.losses == pytest.approx(native.losses, abs=1e-6)
    for mine, theirs in zip(ours.gradients, native.gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)
    assert [m["reward"] for m in ours.metrics] == [m["reward"] for m in native.metrics]


def test_the_papers_form_with_kl_has_the_native_loss_but_another_gradient() -> None:
    """At the first step the reference is the policy: KL and its plain gradient are 0; later NeMo-RL's differs."""
    ours, native = beside_native("loss_fn.reference_policy_kl_penalty=0.5")
    assert ours.losses[1] == pytest.approx(native.losses[1], abs=1e-5)
    assert float((ours.gradients[1] - native.gradients[1]).abs().max()) > 1e-6


def test_a_request_ends_the_real_loop_after_the_step() -> None:
    stop = StopRequest()
    stop.ask("a test")
    assert len(train_ours(run_of("grpo"), steps=4, stop=stop).metrics) == 1


def test_the_end_of_the_job_ends_the_real_loop_after_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes NeMo-RL's own time-out, which a recipe's earlier one stays before."""
    monkeypatch.setenv(JOB_END, str(time.time() + upstream.SAVING_S + 0.01))
    assert len(train_ours(run_of("grpo"), steps=4).metrics) == 1
    monkeypatch.setenv(JOB_END, str(time.time() + upstream.SAVING_S + 3600))
    assert len(train_ours(run_of("grpo"), steps=2).metrics) == 2
    earlier = ["checkpointing.checkpoint_must_save_by='00:00:00:00'"]
    assert len(train_ours(run_of("grpo", *earlier), steps=2).metrics) == 1


def test_order_of_a_step() -> None:
    run = train_ours(run_of("uecr"))
    assert run.events == [
        "generation sleeps", "room to score", "teacher on", "teacher scores", "teacher off", "student on",
        "student scores", "student trains",
    ]  # fmt: skip
    asked = run._teachers["teacher"].asked
    assert [(request.temperatures, request.entropy) for _, request in asked] == [({"logp": 1.0}, True)]


def test_several_optimizer_steps_a_batch() -> None:
    run = train_ours(run_of("uecr", "policy.train_global_batch_size=8"), steps=2)
    last = run.metrics[-1]
    assert len(run.losses) == 8
    assert last["count/optimizer_steps"] == 8.0
    assert last["policy/first_ratio_error"] == 0.0
    assert last["policy/ratio_max"] > 1.0
    # The logged loss is the mean over the four optimizer steps of the batch.
    assert last["policy/loss"] == pytest.approx(sum(run.losses[4:]) / 4, abs=1e-6)


def test_equal_prompts_stay_apart() -> None:
    """Problems 0 and 1 have the same tokens."""
    twins = TinyProblems(seed_of=lambda index: max(index, 1))
    assert train_ours(run_of("uecr"), problems=twins).metrics[0]["group/count"] == PROMPTS


def test_substitutions_are_taken_back() -> None:
    """Every name of the loop's module, however the block ends; the names are read from the module, not from a list."""
    grpo = importlib.import_module("nemo_rl.algorithms.grpo")
    before = dict(vars(grpo))

    def changed() -> set[str]:
        return {name for name, value in vars(grpo).items() if before.get(name) is not value}

    def fail_inside() -> None:
        with upstream.substitutions(estimator=object, more_worker_groups=1, stop=StopRequest(), timeouts=[]):
            assert changed() == {"_create_advantage_estimator", "RayVirtualCluster", "TimeoutChecker"}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_inside()
    assert changed() == set()
