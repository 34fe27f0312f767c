"""The teacher's life over its workers: when it is offloaded, when that is measured, how long each call may take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.nemo import teacher, upstream
from nemo_uecr.nemo.policy import PolicyMethods
from nemo_uecr.nemo.recipe import Settings
from nemo_uecr.nemo.step import StepContext
from nemo_uecr.nemo.teacher import RayTeacher
from nemo_uecr.nemo.worker_scoring import ScoreRequest
from tests.nemo.made_recipe import RECIPE, made_settings

REQUEST = ScoreRequest({"logp": 1.0}, False, 8, 8)


class Policy:
    """NeMo-RL's, as far as the calls of workers need it."""

    def __init__(self, **given: object) -> None: ...

    def offload_before_refit(self) -> None: ...

    def offload_after_refit(self) -> None: ...

    use_sequence_packing, data_parallel_size = True, 1


class UecrPolicy(PolicyMethods, Policy):
    """Ours over it."""


@pytest.fixture
def settings() -> Settings:
    return made_settings(8, uecr__timeout_s=7.0)


def teacher_of(settings: Settings, *, stays: bool) -> RayTeacher:
    section, student = settings.teachers["teacher"], RECIPE["policy"]
    return RayTeacher(settings, section, student=student, cluster=None, tokenizer=None, stays=stays)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Methods that workers were asked for, each with the configured time to answer."""
    found: list[str] = []

    def call(method: str, seconds: float) -> None:
        assert seconds == 7
        found.append(method)

    monkeypatch.setattr(upstream, "native", lambda name: Policy)
    monkeypatch.setattr(teacher, "columns_of", lambda name: 8)
    monkeypatch.setattr(upstream, "call_all", lambda policy, method, *, seconds, **given: call(method, seconds))
    monkeypatch.setattr(upstream, "score_on_workers", lambda *args, seconds: call("score_tokens", seconds))
    return found


def test_the_offload_is_measured_at_the_start_and_after_the_first_scoring(settings: Settings, calls: list[str]) -> None:
    scorer = teacher_of(settings, stays=False)
    assert calls == ["offload_after_refit", "assert_offloaded"]
    for _ in range(3):
        scorer.load()
        scorer.score_tokens({}, REQUEST)
        scorer.offload()
    step = ["prepare_for_lp_inference", "score_tokens", "offload_after_refit"]
    assert calls[2:] == [*step, "assert_offloaded", *step, *step]


def test_a_teacher_never_sees_the_experts_that_generation_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are they sent to its workers: of long responses they are the largest column."""
    seen: list[set[str]] = []

    def scored(scorer: Any, data: dict[str, Any], request: ScoreRequest, *, name: str) -> dict[str, torch.Tensor]:
        seen.append(set(data))
        return {"logp": torch.zeros(data["input_ids"].shape), "top_ids": torch.zeros(len(data["input_ids"]), 1)}

    monkeypatch.setattr(teacher, "score", scored)
    data = {"input_ids": torch.zeros(2, 3), upstream.ROUTES: torch.zeros(2, 3, 4, 2)}
    one = SimpleNamespace(columns=8, load=lambda: None, offload=lambda: None)
    teacher.score_by_teachers({"teacher": one}, ["teacher", "teacher"], data, lambda columns: REQUEST)
    assert seen == [{"input_ids"}]


def test_a_dedicated_teacher_stays_where_it_is(settings: Settings, calls: list[str]) -> None:
    scorer = teacher_of(settings, stays=True)
    scorer.load()
    scorer.offload()
    assert calls == []


def test_the_student_looks_for_room_before_vllm_wakes(settings: Settings, calls: list[str]) -> None:
    """Once a refit, whose second half finds vLLM awake; and where an evaluation has made the refit."""
    policy = UecrPolicy(context=StepContext(settings, None), teachers={})
    policy.score_tokens({}, REQUEST)
    policy.offload_before_refit()
    policy.offload_after_refit()
    assert calls == ["score_tokens", "assert_room"]
    policy.offload_after_refit()
    assert calls == ["score_tokens", "assert_room", "assert_room"]
