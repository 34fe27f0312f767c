"""The teacher's life over its workers: when it is offloaded, when that is measured, how long each call may take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.estimator import StepContext
from nemo_uecr.nemo.policy import PolicyMethods
from nemo_uecr.nemo.teacher import RayTeacher
from nemo_uecr.nemo.two_temperatures import ScoreRequest
from tests.config.test_nemo import CONFIGS, GIVEN

BASE = CONFIGS / "uecr_qwen3_1p7b.yaml"
REQUEST = ScoreRequest((1.0,), False, 8, 8)


def teacher_with(calls: list[str], monkeypatch: pytest.MonkeyPatch, *, dedicated: bool) -> RayTeacher:
    monkeypatch.setattr(upstream, "policy_class", lambda: lambda **given: SimpleNamespace(data_parallel_size=1))
    monkeypatch.setattr(upstream, "call_all", lambda policy, method, **given: calls.append(method))
    monkeypatch.setattr(upstream, "score_on_workers", lambda *args, **given: calls.append("score_tokens"))
    config = load_nemo_config(BASE, GIVEN["1p7b"])
    return RayTeacher(config, student={}, cluster=None, tokenizer=None, stays=dedicated)


def test_the_offload_is_measured_at_the_start_and_after_the_first_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    teacher = teacher_with(calls, monkeypatch, dedicated=False)
    assert calls == ["offload_after_refit", "assert_offloaded"]
    for _ in range(3):
        teacher.load()
        teacher.score_tokens({}, REQUEST)
        teacher.offload()
    step = ["prepare_for_lp_inference", "score_tokens", "offload_after_refit"]
    assert calls[2:] == [*step, "assert_offloaded", *step, *step]


def test_every_call_of_a_worker_waits_as_long_as_the_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: dict[str, float] = {}

    class Policy:
        """NeMo-RL's, as far as the calls of workers need it."""

        cfg = {"generation": {"vllm_cfg": {"gpu_memory_utilization": 0.6}}}  # noqa: RUF012

        def __init__(self, **given: object) -> None: ...

        def offload_before_refit(self) -> None:
            waits["offload_before_refit"] = 0.0

    class UecrPolicy(PolicyMethods, Policy):
        """Ours over it."""

    monkeypatch.setattr(upstream, "policy_class", lambda: Policy)
    monkeypatch.setattr(upstream, "call_all", lambda policy, method, **given: waits.update({method: given["seconds"]}))
    monkeypatch.setattr(upstream, "score_on_workers", lambda *args, **given: waits.update(score=given["seconds"]))
    config = load_nemo_config(BASE, [*GIVEN["1p7b"], "scoring.timeout_s=7"])
    teacher = RayTeacher(config, student={}, cluster=None, tokenizer=None, stays=False)
    teacher.load()
    teacher.score_tokens({}, REQUEST)
    teacher.offload()
    methods = ("offload_after_refit", "assert_offloaded", "prepare_for_lp_inference", "score")
    assert waits == dict.fromkeys(methods, 7.0)
    waits.clear()
    policy = UecrPolicy(context=StepContext(config, None, completed_steps=0), teacher=None)
    policy.score_tokens({}, REQUEST)
    policy.offload_before_refit()
    assert list(waits.items()) == [("score", 7.0), ("offload_before_refit", 0.0), ("assert_room", 7.0)]


def test_a_dedicated_teacher_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    teacher = teacher_with(calls, monkeypatch, dedicated=True)
    teacher.load()
    teacher.offload()
    assert calls == []
