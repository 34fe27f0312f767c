"""Each value of a configuration reaches NeMo-RL's key that reads it, for the student and for its teacher."""

from __future__ import annotations

import pytest

from nemo_uecr.nemo.step import StepContext
from nemo_uecr.nemo.translate import master_config, teacher_policy
from nemo_uecr.reproducible import derive
from tests.config.shipped import nemo_run

#: Every number another, so that none can stand in another's place.
VALUES = [
    "rollout.temperature=0.61", "rollout.top_p=0.83", "rollout.top_k=17", "train.learning_rate=3e-6",
    "loss.clip_low=0.11", "loss.clip_high=0.29", "loss.reference_kl=0.007", "train.weight_decay=0.03",
    "train.max_grad_norm=0.7", "train.betas=[0.8,0.97]",
]  # fmt: skip


def test_every_number_arrives() -> None:
    native = master_config(nemo_run(*VALUES))
    generation, megatron = native["policy"]["generation"], native["policy"]["megatron_cfg"]
    for prefix in ("", "val_"):
        assert [generation[f"{prefix}{name}"] for name in ("temperature", "top_p", "top_k")] == [0.61, 0.83, 17]
    optimizer, schedule = megatron["optimizer"], megatron["scheduler"]
    assert (optimizer["lr"], optimizer["min_lr"], optimizer["weight_decay"]) == (3e-6, 3e-6, 0.03)
    assert (optimizer["adam_beta1"], optimizer["adam_beta2"], optimizer["adam_eps"]) == (0.8, 0.97, 1e-8)
    assert (optimizer["clip_grad"], native["policy"]["max_grad_norm"]) == (0.7, 0.7)
    assert (schedule["start_weight_decay"], schedule["end_weight_decay"]) == (0.03, 0.03)
    assert schedule["override_opt_param_scheduler"] is True  # or Megatron refuses to continue a run to more steps
    assert native["policy"]["uecr"]["temperature"] == 0.61
    loss = native["loss_fn"]
    assert (loss["ratio_clip_min"], loss["ratio_clip_max"], loss["reference_policy_kl_penalty"]) == (0.11, 0.29, 0.007)


def test_stop_strings_arrive_and_leave_vllm_its_tokenizer() -> None:
    """NeMo-RL loads it where the rollout has stop strings; an evaluation's alone are our own call of the engine."""
    plain, rollout, evaluation = (
        master_config(nemo_run(*changes))["policy"]["generation"]
        for changes in ([], ['rollout.stop=["###","\\n\\n"]'], ['evaluation.stop=["###"]'])
    )
    assert (plain["stop_strings"], "skip_tokenizer_init" in plain["vllm_cfg"]) == (None, False)
    assert rollout["stop_strings"] == ["###", "\n\n"]
    assert (evaluation["stop_strings"], evaluation["vllm_cfg"]["skip_tokenizer_init"]) == (None, False)


def test_the_schedule_counts_completed_steps_and_shuffles_differ_by_step() -> None:
    config = nemo_run("method.name=rlsd", "method.mix=0.25")
    first, second = (StepContext(config, None, completed_steps=step).run_state for step in (0, 1))
    assert (first.step, second.step) == (0, 1)
    as_local = [derive(config.run.seed, "shuffle", step) % 2**31 for step in (1, 2)]
    assert [first.seed, second.seed] == as_local


@pytest.mark.parametrize(
    ("changes", "gpus"), [(["teacher.dedicated_gpus=1"], 7), (["teacher.dedicated_gpus=8", "cluster.nodes=2"], 8)]
)
def test_a_dedicated_teacher_leaves_the_other_gpus(changes: list[str], gpus: int) -> None:
    cluster = master_config(nemo_run(*changes))["cluster"]
    assert (cluster["num_nodes"], cluster["gpus_per_node"]) == (1, gpus)


def test_lengths_fit_student_teacher_and_evaluation() -> None:
    """Student TP2 with sequence parallel needs a multiple of 2, a teacher with CP2 of 4; evaluation is longer."""
    layout = ["student.parallel.tensor=2", "student.parallel.sequence=true", "teacher.parallel.context=2"]
    long = ["evaluation.max_tokens=30000", "evaluation.benchmarks.easy=easy.jsonl"]
    policy = master_config(nemo_run(*layout, *long))["policy"]
    assert policy["make_sequence_length_divisible_by"] == 4
    assert policy["generation"]["vllm_cfg"]["max_model_len"] == 2048 + 30000
    assert policy["generation"]["max_new_tokens"] == 16384


def test_the_teacher_is_the_raw_model_in_its_own_layout() -> None:
    """Whatever the student samples at, and whatever checkpoint it starts from."""
    changes = ["teacher.fp8=true", "teacher.parallel.tensor=4", "teacher.megatron_checkpoint=there", *VALUES]
    config = nemo_run(*changes)
    student = master_config(config)["policy"] | {"pretrained_checkpoint": "the student's", "quant_cfg": "int4"}
    teacher = teacher_policy(config, student, 152_064)
    sampling, megatron = teacher["generation"], teacher["megatron_cfg"]
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (1.0, 1.0, None)
    assert teacher["uecr"] == {"temperature": 1.0, "filters": "paper", "vocabulary": 152_064}
    assert (megatron["fp8_cfg"]["enabled"], megatron["fp8_cfg"]["force_clear_fp8_caches"]) == (True, True)
    assert megatron["tensor_model_parallel_size"] == 4
    assert teacher["pretrained_checkpoint"] == {"path": "there", "format": "megatron_bridge"}
    assert "quant_cfg" not in teacher
    assert (student["generation"]["temperature"], student["model_name"]) == (0.61, config.student.model_name)
