"""Launching: the run's record, the prompt file, problems, vocabularies, and the teacher's life."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.core.methods import METHODS
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.nemo import teachers, upstream
from nemo_uecr.nemo.errors import UpstreamError, WorkerError
from nemo_uecr.nemo.launcher import _prompt_file, run_spec
from nemo_uecr.nemo.problem_rows import selected_rows
from nemo_uecr.nemo.request import ScoreRequest
from nemo_uecr.nemo.scorer import on_device
from nemo_uecr.nemo.teacher_plan import teacher_plan
from nemo_uecr.nemo.translate import master_config
from nemo_uecr.nemo.vocabulary import check_columns, check_same_tokenizer
from nemo_uecr.stopping import JOB_END, RunStopped, StopRequest
from tests.config.test_nemo import CONFIGS, GIVEN, GRPO, OTHERS, given


@pytest.mark.parametrize("name", OTHERS)
def test_every_configuration_has_what_its_method_needs(name: str) -> None:
    spec = run_spec(load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", given("1p7b", name)))
    settings = spec.settings_of(3)
    assert all(getattr(settings, setting) is not None for setting in METHODS[name].core_settings)
    assert spec.responses == 1008
    assert spec.teacher_request().temperatures == (1.0,)
    assert spec.student_request().temperatures == (0.7, 1.0)


def test_an_added_method_hands_its_own_parameters_over() -> None:
    overrides = [*GIVEN["1p7b"], "method.name=rlsd", "method.parameters.mix=0.25"]
    spec = run_spec(load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", overrides))
    assert spec.settings_of(0).parameters == {"mix": 0.25, "bound": 0.2}


def test_the_schedule_counts_completed_steps_and_shuffles_differ_by_step() -> None:
    spec = run_spec(load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", GIVEN["1p7b"]))
    assert spec.settings_of(0).step == 0
    assert spec.settings_of(0).seed != spec.settings_of(1).seed


def test_a_dedicated_gpu_leaves_seven() -> None:
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GIVEN["1p7b"], "teacher.dedicated_gpus=1"])
    cluster = master_config(config, prompt_file="p")["cluster"]
    assert (cluster["num_nodes"], cluster["gpus_per_node"]) == (1, 7)
    nodes = load_nemo_config(
        CONFIGS / "uecr_qwen3_1p7b.yaml", [*GIVEN["1p7b"], "teacher.dedicated_gpus=8", "cluster.nodes=2"]
    )
    assert master_config(nodes, prompt_file="p")["cluster"]["num_nodes"] == 1


def test_sequences_divide_for_student_and_teacher() -> None:
    """Student TP2 with sequence parallel needs 2; a teacher with CP2 needs 4; both: 4."""
    changes = [
        "student.parallel.tensor=2", "student.parallel.sequence=true", "teacher.parallel.context=2",
    ]  # fmt: skip
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GIVEN["1p7b"], *changes])
    assert master_config(config, prompt_file="p")["policy"]["make_sequence_length_divisible_by"] == 4


def test_the_prompt_keeps_its_braces(tmp_path: Path) -> None:
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", GIVEN["1p7b"])
    template = _prompt_file(config, tmp_path).read_text()
    assert template.format("1+1?") == config.data.prompt_template.replace("{question}", "1+1?")
    assert "\\boxed{}" in template.format("1+1?")


def problems(tmp_path: Path) -> str:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "difficulty": i % 10}) + "\n" for i in range(50)))
    return str(path)


def test_problems_are_kept_by_difficulty_and_drawn_by_seed(tmp_path: Path) -> None:
    path = problems(tmp_path)
    kept = selected_rows(path, difficulty_key="difficulty", low=5, high=7, subset=None, seed=0)
    assert {row["difficulty"] for row in kept} == {5, 6, 7}
    assert len(kept) == 15
    drawn = [selected_rows(path, difficulty_key="difficulty", low=5, high=7, subset=4, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(row in kept for row in drawn[0])


def test_tokenizers_are_compared_id_by_id() -> None:
    def tokenizer(**vocabulary: int) -> Any:
        return SimpleNamespace(get_vocab=lambda: vocabulary)

    check_same_tokenizer(tokenizer(a=0, b=1), tokenizer(b=1, a=0))
    with pytest.raises(DataError, match="token id 1 is 'b' for the student and 'c' for the teacher"):
        check_same_tokenizer(tokenizer(a=0, b=1), tokenizer(a=0, c=1))
    with pytest.raises(DataError, match="token id 2 is None for the student"):
        check_same_tokenizer(tokenizer(a=0, b=1), tokenizer(a=0, b=1, c=2))
    with pytest.raises(DataError, match="the teacher has 12 output columns"):
        check_columns(SimpleNamespace(vocab_size=12), expected=11, who="teacher")


def test_a_silent_worker_is_not_asked_again() -> None:
    """The error that names it is the one that is seen, after one wait."""
    events: list[str] = []

    def offload() -> None:
        events.append("off")
        raise WorkerError("offload_after_refit: no answer")

    def fail(error: Exception) -> None:
        teacher: Any = SimpleNamespace(load=lambda: None, offload=offload)
        with on_device(teacher):
            raise error

    with pytest.raises(WorkerError, match="score_tokens: no answer"):
        fail(WorkerError("score_tokens: no answer"))
    assert events == []
    with pytest.raises(ValueError, match="first"):
        fail(ValueError("first"))
    assert events == ["off"]


def teacher_with(calls: list[str], monkeypatch: pytest.MonkeyPatch, *, dedicated: bool) -> teachers.RayTeacher:
    monkeypatch.setattr(upstream, "policy_class", lambda: lambda **given: SimpleNamespace(data_parallel_size=1))
    monkeypatch.setattr(teachers, "call_all", lambda policy, method, **given: calls.append(method))
    monkeypatch.setattr(teachers, "score_on_workers", lambda *args, **given: calls.append("score_tokens"))
    plan = teachers.TeacherPlan({}, (), 1.0, dedicated, 64)
    return teachers.RayTeacher(plan, student_config={}, cluster=None, tokenizer=None)


def test_the_offload_is_measured_at_the_start_and_after_the_first_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    teacher = teacher_with(calls, monkeypatch, dedicated=False)
    assert calls == ["offload_after_refit", "assert_offloaded"]
    for _ in range(3):
        with on_device(teacher):
            teacher.score_tokens({}, ScoreRequest((1.0,), False, 8, 8))
    step = ["prepare_for_lp_inference", "score_tokens", "offload_after_refit"]
    assert calls[2:] == [*step, "assert_offloaded", *step, *step]


def test_every_call_of_a_worker_waits_as_long_as_the_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: dict[str, float] = {}

    class Policy:
        def __init__(self, **given: object) -> None:
            """As NeMo-RL's, which takes many."""
            self.cfg = {"generation": {"vllm_cfg": {"gpu_memory_utilization": 0.6}}}

        def offload_before_refit(self) -> None:
            """As NeMo-RL's, right before vLLM wakes."""
            waits["offload_before_refit"] = 0.0

    monkeypatch.setattr(upstream, "policy_class", lambda: Policy)
    monkeypatch.setattr(teachers, "call_all", lambda policy, method, **given: waits.update({method: given["seconds"]}))
    monkeypatch.setattr(teachers, "score_on_workers", lambda *args, **given: waits.update(score=given["seconds"]))
    plan = teacher_plan(load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GIVEN["1p7b"], "scoring.timeout_s=7"]))
    assert plan is not None
    teacher = teachers.RayTeacher(plan, student_config={}, cluster=None, tokenizer=None)
    with on_device(teacher):
        teacher.score_tokens({}, ScoreRequest((1.0,), False, 8, 8))
    methods = ("offload_after_refit", "assert_offloaded", "prepare_for_lp_inference", "score")
    assert waits == dict.fromkeys(methods, 7.0)
    teachers.scoring_policy_class(timeout_s=8.0)().score_tokens({}, ScoreRequest((1.0,), False, 8, 8))
    assert waits["score"] == 8.0
    teachers.scoring_policy_class(timeout_s=9.0)().offload_before_refit()
    assert list(waits.items())[-2:] == [("offload_before_refit", 0.0), ("assert_room", 9.0)]


def test_a_dedicated_teacher_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    with on_device(teacher_with(calls, monkeypatch, dedicated=True)):
        pass
    assert calls == []


def test_without_nemo_rl_a_run_stops_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from nemo_uecr.nemo import launcher

    monkeypatch.setitem(sys.modules, "nemo_rl", None)
    monkeypatch.delitem(sys.modules, "nemo_rl.package_info", raising=False)
    problems = tmp_path / "p.jsonl"
    problems.write_text('{"question": "1+1", "final_answer": "2", "difficulty": 6}\n' * 200)
    given = [f"data.train={problems}", f"run.folder={tmp_path}/run"]
    with pytest.raises(UpstreamError, match="NeMo-RL cannot be imported") as caught:
        launcher.train(
            load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GRPO, *given]),
            resume=False,
            origins={},
            objective="",
        )
    assert "\n" not in str(caught.value)


def test_the_teacher_is_the_raw_model_whatever_the_student_samples_at() -> None:
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GIVEN["1p7b"], "teacher.fp8=true"])
    plan = teacher_plan(config)
    assert plan is not None
    teacher = plan.configuration(master_config(config, prompt_file="p")["policy"])
    sampling = teacher["generation"]
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (1.0, 1.0, None)
    assert teacher["uecr"] == {"temperature": 1.0, "filters": "paper", "vocabulary": 151936}
    fp8 = teacher["megatron_cfg"]["fp8_cfg"]
    assert (fp8["enabled"], fp8["force_clear_fp8_caches"]) == (True, True)


def ended(*overrides: str, completed: int, reason: str = "SIGUSR1") -> None:
    """Report the end of a run that was asked to stop and reached this step."""
    from nemo_uecr.nemo.early_end import report_early_end

    stop = StopRequest()
    stop.ask(reason)
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GRPO, "train.steps=40", *overrides])
    report_early_end(stop, config, completed=completed)


def test_an_early_end_says_where_it_saved() -> None:
    with pytest.raises(RunStopped, match=r"stopped by SIGUSR1 after step 7 of 40; .*/checkpoints/step_7 is complete"):
        ended(completed=7)
    ended(completed=40)  # the last step was under way: the run is complete
    with pytest.raises(RunFolderError, match=r"checkpoint.every=0: nothing was saved"):
        ended("checkpoint.every=0", completed=0)


def test_the_job_s_end_becomes_nemo_rl_s_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_uecr.nemo.early_end import SAVING_S, limit_time

    native: Any = SimpleNamespace(checkpointing={"checkpoint_must_save_by": None})
    monkeypatch.delenv(JOB_END, raising=False)
    limit_time(native)
    assert native.checkpointing["checkpoint_must_save_by"] is None
    # 1 day, 2 hours, 3 minutes and 4 seconds, and what a save may take
    monkeypatch.setenv(JOB_END, str(time.time() + 86400 + 7200 + 180 + 4 + SAVING_S + 0.9))
    limit_time(native)
    assert native.checkpointing["checkpoint_must_save_by"] == "01:02:03:04"
    monkeypatch.setenv(JOB_END, str(time.time() + 1))  # too late for anything: after the first step
    limit_time(native)
    assert native.checkpointing["checkpoint_must_save_by"] == "00:00:00:00"
