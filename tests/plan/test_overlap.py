"""Rollouts while training goes on: the simulated loop by hand and beside another, its plan, and where a teacher is."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.nemo.layout import Job
from nemo_uecr.plan.advice import fastest, splits
from nemo_uecr.plan.contents import GIB, GPUS, Lengths, Plan
from nemo_uecr.plan.nemo import DECODE_STEP, engine_seconds, nemo_plan, response_lengths, teacher_stays
from nemo_uecr.plan.overlap import Pace, overlapped
from nemo_uecr.start.recipe_form import settled_teachers
from tests.config.shipped import CONFIGS
from tests.plan.subjects import nemo

H100 = GPUS["h100"]
LENGTHS = Lengths(prompt=200, response=5357, sigma=0.9)
#: vLLM on four of a node's eight GPUs, while the student trains on the others.
APART = (
    "policy.generation.colocated.enabled=false", "++policy.generation.colocated.resources.gpus_per_node=4",
    "policy.generation.vllm_cfg.async_engine=true", "policy.generation.top_p=1.0", "policy.generation.top_k=null",
    "loss_fn.use_importance_sampling_correction=true", "++grpo.async_grpo.enabled=true",
    "++grpo.async_grpo.max_trajectory_age_steps=2", "++grpo.async_grpo.in_flight_weight_updates=true",
    "uecr.evaluation=null",
)  # fmt: skip


def pace(**changes: float) -> Pace:
    """A decoding step of one second, whatever runs, unless changes say otherwise."""
    made = Pace(H100, lambda running: 0.0, cached=0, flops=0.0, more=1.0, prompt=0, prefill=0.0, at_once=1000)
    return replace(made, **changes)


def same(*groups: Sequence[float]) -> Callable[[int], Sequence[Sequence[float]]]:
    return lambda step: groups


@pytest.mark.parametrize(
    ("age", "in_flight", "training", "seconds"),
    [
        (1, False, 30.0, 100.0 + 2.0),  # the longest response, whose end the refit waits for
        (1, False, 130.0, 130.0 + 2.0),  # training is the longer half
        (1, True, 30.0, (100.0 + 30.0 + 2 * 2.0) / 2),  # two batches in a window of two steps less one training
        (3, True, 30.0, (100.0 + 30.0 + 4 * 2.0) / 4),
        (3, True, 70.0, 70.0 + 2.0),
    ],
)
def test_a_step_by_hand(age: int, in_flight: bool, training: float, seconds: float) -> None:
    """A long response and short ones, at one token a second: batch k begins k - age updates in, and trains whole.

    From update k - age until batch k trains there are age + 1 steps less that training: (age + 1) T = 100 + training +
    refits.
    """
    batch = same([100.0, 1.0], *[[1.0, 1.0]] * 5)
    found = overlapped(pace(), batch, engines=2, age=age, in_flight=in_flight, training=training, refit=2.0)
    assert found.seconds == pytest.approx(seconds, rel=0.02)
    assert found.training == training + 2.0
    assert found.most_policies == 1 if not in_flight else found.most_policies <= age + 1
    assert found.policies >= 1.0


def test_an_engine_is_as_fast_as_in_the_synchronous_plan() -> None:
    """One engine, no training: a step is the batch's own time, with weights, cache, and places in the cache."""
    drawn = response_lengths(Lengths(200, 1000, 0.9), 4000, 64)
    sizes = {"weights": int(3.44e9), "cached": 114_688, "flops": 3.4e9}
    expected = engine_seconds(H100, drawn, 24, 200, **sizes, more=0.0)
    engine = pace(**sizes | {"more": DECODE_STEP, "prompt": 200, "at_once": 24})
    engine = replace(engine, weights=lambda running: sizes["weights"])
    groups = [drawn[first : first + 4] for first in range(0, 64, 4)]
    found = overlapped(engine, same(*groups), engines=1, age=1, in_flight=False, training=0.0, refit=0.0)
    assert found.seconds == pytest.approx(expected, rel=0.03)
    assert found.idle == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("age", "in_flight", "gain"), [(1, False, 1.06), (1, True, 1.2), (2, True, 1.5), (3, True, 1.95)]
)
def test_gains_that_another_simulation_found(age: int, in_flight: bool, gain: float) -> None:
    """1.7B by 4B on 64 H100, of which 8 or 16 train, beside the synchronous step: code of its own, by ticks of tokens.

    It lets any number of groups run at once, where NeMo-RL's collector has ``age`` batches of them.
    """
    drawn = response_lengths(LENGTHS, 16_384, 1008)
    sizes = {"weights": int(3.44e9), "cached": 114_688}
    forward, scored, trained = 157.0, 140.0, 263.0  # GPU seconds of a step

    def batch(step: int) -> list[Sequence[float]]:
        shuffled = random.Random(step).sample(drawn, len(drawn))
        return [shuffled[first : first + 8] for first in range(0, len(shuffled), 8)]

    responses = [length for group in batch(0) for length in group]
    slowest = max(engine_seconds(H100, responses[one::64], 16, 200, **sizes, flops=0) for one in range(64))
    synchronous = slowest + (forward + scored + trained) / 64 + 3.6 + 5.0
    assert synchronous == pytest.approx(135, rel=0.03)
    engine = replace(pace(cached=114_688, more=DECODE_STEP, prompt=200), weights=lambda running: 3.44e9)
    steps = [
        overlapped(
            engine, batch, engines=64 - own, age=age, in_flight=in_flight,
            training=(forward + scored + trained) / own, refit=3.6,
        ).seconds
        for own in (8, 16)
    ]  # fmt: skip
    assert synchronous / min(steps) == pytest.approx(gain, rel=0.2)


# -- its plan --------------------------------------------------------------------------------------------------------


def job(*changes: str) -> Job:
    return nemo(*APART, *changes)


def plan_of(*changes: str, memory: int = 80) -> Plan:
    return nemo_plan(job(*changes), replace(H100, memory=memory * GIB), LENGTHS)


def phase(plan: Plan, name: str) -> dict[str, int]:
    return {item.name: item.size for each in plan.phases if each.name == name for item in each.device}


def test_the_plan_of_an_asynchronous_recipe_is_the_overlapped_step() -> None:
    plan = plan_of()
    step = plan.overlap
    assert step is not None
    assert (step.training_gpus, step.generation_gpus, step.age, step.in_flight) == (4, 4, 2, True)
    seconds = {each.name: each.seconds for each in plan.phases}
    assert step.training == pytest.approx(sum(seconds.values()) - seconds["rollout"])
    assert plan.seconds == step.seconds < sum(seconds.values())
    assert step.seconds >= max(step.training, step.rollout) - 0.1
    assert nemo_plan(nemo(), H100, LENGTHS).overlap is None


def test_a_teacher_stays_where_every_phase_fits_with_it() -> None:
    """8.19 billion parameters, 15.3 GiB, beside the student's own; what leaves goes over the host link."""
    stays, leaves = plan_of(), plan_of(memory=60)
    assert phase(stays, "train")["teacher that stays"] == 2 * 8_190_735_360
    assert phase(stays, "score teacher").keys() >= {"student weights", "gradients", "optimizer", "teacher weights"}
    assert "teacher that stays" not in phase(stays, "score teacher")
    assert phase(leaves, "train")["teacher asleep"] == 64 * 2**20
    assert "student weights" not in phase(leaves, "score teacher")
    assert not stays.faults
    assert not leaves.faults
    scored = {
        plan: next(each.seconds for each in plan.phases if each.name == "score teacher") for plan in (stays, leaves)
    }
    moved = 2 * (8_190_735_360 + 4_022_468_096) + 10 * 4_022_468_096 // 4
    assert scored[leaves] - scored[stays] == pytest.approx(moved / H100.host_link, rel=1e-6)
    most = max(each.size for each in stays.phases if each.where == "student GPUs")
    for memory, expected in ((most, True), (most - 1, False)):
        assert teacher_stays(job(), replace(H100, memory=memory), LENGTHS) is expected


@pytest.mark.parametrize("stated", ["true", "false"])
def test_the_key_decides_where_it_is_set(stated: str) -> None:
    for memory in (60, 80):
        trained = phase(plan_of(f"++uecr.teacher.stays={stated}", memory=memory), "train")
        assert ("teacher that stays" in trained) == (stated == "true")


@pytest.mark.parametrize(("memory", "word"), [(None, "false"), (60, "false"), (80, "true")])
def test_the_start_of_a_run_decides_as_the_plan(
    memory: int | None, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(CONFIGS / "uecr_qwen3_4b.yaml")
    given = ["uecr.teacher.model_name=Qwen/Qwen3-8B", "uecr.data.subset=null"]
    size = None if memory is None else memory * GIB
    with caplog.at_level("INFO"):
        assert settled_teachers(path, [*given, *APART], lambda: size) == [f"++uecr.teacher.stays={word}"]
    assert ("no GPU is seen here" in caplog.text) == (memory is None)
    assert settled_teachers(path, [*given, *APART, "++uecr.teacher.stays=true"], lambda: size) == []
    assert settled_teachers(path, given, lambda: size) == []  # vLLM shares its GPUs
    assert settled_teachers(path, ["uecr.method.name=grpo", *given, *APART], lambda: size) == []


def test_splits() -> None:
    """Of one node's GPUs: the step falls while the rollout half is the longer, and then rises."""
    tried = splits(job(), H100, LENGTHS)
    assert [each.keys for each in tried] == [
        {"policy.generation.colocated.resources.gpus_per_node": own} for own in range(1, 8)
    ]
    seconds = [each.plan.seconds if each.plan and not each.why else math.inf for each in tried]
    best = fastest(tried)
    assert best is not None
    assert best.plan is not None
    assert best.plan.seconds == min(seconds)
    assert tried[2].plan is None  # five GPUs train, which cannot share 1008 responses
    assert "policy.train_global_batch_size: got 1008" in tried[2].why


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan",
        str(CONFIGS / "uecr_qwen3_4b.yaml"),
        "uecr.teacher.model_name=Qwen/Qwen3-8B",
        "uecr.data.subset=null",
    ]
    lengths = ["--device", "h100", "--response-tokens", "5357", "--prompt-tokens", "200"]
    assert entry_point([*words, *APART, *lengths, "--json", str(tmp_path / "plan.json")]) == 0
    printed = capsys.readouterr().out
    step = json.loads((tmp_path / "plan.json").read_text())["overlap"]
    assert f"a response comes from {step['policies']:.2f} policies on average" in printed
    assert "times as fast as a synchronous step on the same GPUs, vLLM on all of them:" in printed
    assert "teacher Qwen/Qwen3-8B which stays on the student's GPUs" in printed
    assert entry_point([*words, *APART, *lengths, "--fit", "80", "--json", str(tmp_path / "fit.json")]) == 0
    assert f"fastest: {json.loads((tmp_path / 'fit.json').read_text())['keys'][0]}, " in capsys.readouterr().out
    assert entry_point([*words, *lengths, "--fit", "80"]) == 2
    assert "in which rollout and training take turns" in capsys.readouterr().err
