"""What a recipe's section `uecr` says, and what of a recipe is refused, adjusted, ignored and handed to the adapter."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_uecr.config.load import value_at
from nemo_uecr.errors import ConfigError
from nemo_uecr.nemo import recipe, rules
from nemo_uecr.nemo.layout import job_of, layout_faults
from nemo_uecr.nemo.recipe import DATASET, section_of, teacher_policy, view
from tests.nemo.made_recipe import METHOD, made

OTHER_PROBLEMS = {
    "train": "problems.jsonl", "question_key": "question", "answer_key": "answer", "prompt_template": "{question}",
    "enable_thinking": False, "max_prompt_tokens": 256, "long_prompts": "drop", "shuffle": True,
}  # fmt: skip
EVALUATION = {
    "every": 10, "at_start": True, "samples": 4, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": 42,
    "max_tokens": 256, "benchmarks": {"aime24": "aime24"},
}  # fmt: skip
WITH_SECOND_SURROGATE = {"name": "grpo_plus_opd", "opd_coef": 0.5}


def faults(**values: Any) -> list[str]:
    given = made(**values)
    return rules.faults_of(given, section_of(given))


# -- the section -----------------------------------------------------------------------------------------------------


def test_the_section_has_the_method_and_the_teacher() -> None:
    section = section_of(made(uecr__teacher__megatron_cfg={"tensor_model_parallel_size": 2}))
    assert section.method.name == "uecr"
    (teacher,) = section.active_teachers.values()
    assert teacher.overlay == {"model_name": "models/teacher", "megatron_cfg": {"tensor_model_parallel_size": 2}}
    assert (section.tolerances.first_ratio, section.kl, section.filters) == (0.05, "recipe", "recipe")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"uecr": None}, "the recipe has no section uecr"),
        ({"uecr__method__name": "uec"}, "uecr.method.name: got 'uec', the nearest method is 'uecr'"),
        ({"uecr__method__alfa": 1.0}, "unknown key uecr.method.alfa (set in the recipe)"),
        ({"uecr__tolerance": {}}, "unknown key uecr.tolerance "),
        ({"uecr__teacher": None}, "uecr.teacher.model_name: got null, but method uecr reads a teacher"),
        ({"uecr__teacher__model_name": "???"}, "missing uecr.teacher.model_name; write uecr.teacher.model_name=VALUE"),
        ({"uecr__data": OTHER_PROBLEMS | {"subset": "???"}}, "missing uecr.data.subset; write uecr.data.subset=VALUE"),
        ({"uecr__teachers": {"a": {"model_name": "x"}}}, "uecr.teacher and uecr.teachers.a: got both"),
        ({"uecr__timeout_s": "1h"}, 'uecr.timeout_s: got "1h"'),
        ({"uecr__evaluation": EVALUATION}, "uecr.evaluation.benchmarks: needs data"),
        ({"uecr__data": OTHER_PROBLEMS | {"difficulty_low": 5.0}}, "uecr.data.difficulty_key"),
        ({"uecr__method": {"name": "g_opd"}}, "uecr.method.name: got 'g_opd', which reads the initial"),
    ],
)
def test_a_wrong_section_is_refused_with_its_key(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        section_of(made(**values))
    assert str(error.value).startswith(said)


def test_several_teachers_are_routed() -> None:
    several = {"algebra": {"model_name": "a"}, "rest": {"model_name": "b"}}
    with pytest.raises(ConfigError, match=r"^uecr\.routing: missing"):
        section_of(made(uecr__teacher=None, uecr__teachers=several))
    section = section_of(made(uecr__teacher=None, uecr__teachers=several, uecr__routing={"key": "topic"}))
    assert list(section.active_teachers) == ["algebra", "rest"]


def test_a_method_that_reads_no_teacher_loads_none() -> None:
    section = section_of(made(uecr__method={"name": "grpo"}))
    assert (section.active_teachers, section.dedicated_gpus) == ({}, 0)


# -- refused ---------------------------------------------------------------------------------------------------------


def test_a_usual_recipe_has_no_fault() -> None:
    assert faults() == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policy.megatron_cfg.enabled", False),
        ("policy.generation.backend", "sglang"),
        ("data_plane.enabled", True),
        ("grpo.adv_estimator.name", "gdpo"),
        ("grpo.advantage_clip_high", 2.0),
        ("grpo.invalid_tool_call_advantage", -5.0),
        ("loss_fn.use_kl_in_reward", True),
        ("loss_fn.disable_ppo_ratio", True),
        ("policy.draft.enabled", True),
        ("policy.generation.vllm_cfg.kv_cache_dtype", "fp8"),
        ("policy.megatron_cfg.use_linear_ce_fusion_loss", True),
        ("policy.quant_cfg", "NVFP4_DEFAULT_CFG"),
        ("on_policy_distillation", {"enabled": True}),
    ],
)
def test_what_cannot_be_trained_is_refused_with_key_value_and_reason(key: str, value: object) -> None:
    (fault,) = faults(**{key.replace(".", "__"): value})
    assert fault.startswith(f"{key}: got {value!r}"[:40])
    assert fault.partition("; ")[2]


@pytest.mark.parametrize("place", ["default", "train", "validation"])
def test_pictures_are_refused_wherever_their_processor_stands(place: str) -> None:
    (fault,) = faults(**{f"data__{place}": {"processor": "vlm_hf_data_processor"}})
    assert fault.startswith(f"data.{place}.processor: got 'vlm_hf_data_processor'")
    assert faults(data__train=[{"processor": "math_hf_data_processor"}, {"processor": "vlm_hf_data_processor"}])


def test_every_key_of_the_loss_reaches_both_surrogates() -> None:
    keys = {"loss_fn__use_importance_sampling_correction": True, "loss_fn__use_cispo": True, "loss_fn__ratio_clip_c": 3}
    assert (
        faults(**keys) == faults(**keys, uecr__method=WITH_SECOND_SURROGATE) == faults(**keys, uecr__kl="paper") == []
    )


def test_the_papers_kl_refuses_keys_that_it_does_not_know() -> None:
    given = {"loss_fn__token_level_loss": False, "loss_fn__reference_policy_kl_type": "k2"}
    assert faults(**given) == []
    refused = ["loss_fn.reference_policy_kl_type", "loss_fn.token_level_loss"]
    assert [fault.partition(":")[0] for fault in faults(**given, uecr__kl="paper")] == refused
    assert faults(**given, uecr__kl="paper", loss_fn__reference_policy_kl_penalty=0) == []


def test_a_teacher_with_gpus_of_its_own_leaves_the_others_to_the_student() -> None:
    one_node = made(uecr__teacher__dedicated_gpus=1)
    several = made(uecr__teacher__dedicated_gpus=16, cluster__num_nodes=3)
    for given, gpus, change in ((one_node, [1], ("gpus_per_node", 7)), (several, [8, 8], ("num_nodes", 1))):
        section = section_of(given)
        assert recipe.teacher_gpus(given, section) == gpus
        assert [(each.key, each.value) for each in rules.adjusted(given, section)] == [
            (f"cluster.{change[0]}", change[1])
        ]
    for gpus, nodes in ((8, 1), (4, 2), (16, 2)):
        (fault,) = faults(uecr__teacher__dedicated_gpus=gpus, cluster__num_nodes=nodes)
        assert fault.startswith(f"uecr.teacher.dedicated_gpus: got {gpus}; expected")


def test_an_evaluation_is_as_often_as_what_reads_it() -> None:
    """NeMo-RL's loop validates at one period, and a checkpoint reads its metric from that validation."""
    given = {"uecr__data": OTHER_PROBLEMS, "uecr__evaluation": EVALUATION}
    assert faults(**given, grpo__val_period=5) == faults(**given, grpo__val_period=0) == []
    (fault,) = faults(**given, grpo__val_period=4)
    assert fault.startswith("uecr.evaluation.every: got 10; expected a multiple of grpo.val_period=4")
    ours = {"checkpointing__metric_name": "val:aime24/avg@4"}
    assert faults(**given, **ours, grpo__val_period=10) == faults(**given, **ours) == []
    (fault,) = faults(**given, **ours, grpo__val_period=5)
    assert fault.startswith("checkpointing.metric_name: got val:aime24/avg@4")


def test_batches_that_do_not_divide_are_refused() -> None:
    assert faults(policy__train_global_batch_size=5)[0].startswith("policy.train_global_batch_size: got 5")
    assert faults(grpo__num_generations_per_prompt=1, policy__train_global_batch_size=1)[0].startswith(
        "grpo.num_generations_per_prompt: got 1"
    )


def test_a_misspelt_key_of_a_teacher_is_refused() -> None:
    (fault,) = faults(uecr__teacher__megatron_cfg={"tensor_parallel_size": 2})
    assert fault.startswith("uecr.teacher.megatron_cfg.tensor_parallel_size: no such key")
    assert faults(uecr__teacher__hf_config_overrides={"rope_scaling": {"factor": 4.0}}) == []


def test_what_the_recipe_leaves_open_is_named() -> None:
    assert faults(policy__model_name="???") == ["policy.model_name: missing; write policy.model_name=VALUE"]


def test_our_data_set_and_environment_need_their_sections() -> None:
    asked = {"data__train__dataset_name": DATASET, "data__train__env_name": "nemo_uecr"}
    ours = asked | {"env__nemo_uecr": {"num_workers": 8}}
    assert [fault.partition(":")[0] for fault in faults(**ours)] == ["uecr.data", "uecr.reward"]
    assert faults(**ours, uecr__data=OTHER_PROBLEMS, uecr__reward="math") == []
    assert faults(**asked, uecr__data=OTHER_PROBLEMS, uecr__reward="math")[0].startswith("env.nemo_uecr: missing")
    unused = faults(uecr__data=OTHER_PROBLEMS, uecr__reward="math", env__nemo_uecr={"num_workers": 8})
    assert [fault.partition(",")[0] for fault in unused] == ["uecr.data: given", "uecr.reward: given"]


def test_an_evaluation_has_the_prompts_of_training() -> None:
    given = {"uecr__data": OTHER_PROBLEMS, "uecr__evaluation": EVALUATION}
    changes = {"name": "other", "chat_template": "{{ x }}", "chat_template_kwargs": None}
    for key, value in ((f"tokenizer__{key}", value) for key, value in changes.items()):
        (fault,) = faults(**given, **{f"policy__{key}": value})
        assert fault.startswith(f"policy.{key.replace('__', '.')}: ")
    assert faults(**given, grpo__val_start_at=-1) == []  # the default of NeMo-RL's main
    (fault,) = faults(**given, grpo__val_start_at=100)
    assert fault.startswith("grpo.val_start_at: got 100")
    assert any(said.startswith("uecr.data.train is not trained on") for said in rules.notes(made(**given)))


def test_what_a_teacher_would_not_get_is_refused() -> None:
    for key, value in (
        ("megatron_cfg__peft", {"enabled": True}),
        ("generation__temperature", 0.7),
        ("tokenizer__name", "x"),
    ):
        (fault,) = faults(**{f"uecr__teacher__{key}": value})
        assert re.search(r"got .*; a frozen scorer at temperature 1 has", fault)


def layout_of(**values: Any) -> list[str]:
    given = made(**values)
    return layout_faults(job_of(given, section_of(given)))


ASYNC = {
    "grpo__async_grpo": {"enabled": True, "max_trajectory_age_steps": 1}, "grpo__use_dynamic_sampling": False,
    "policy__generation__colocated": {"enabled": False, "resources": {"gpus_per_node": 4, "num_nodes": None}},
    "policy__generation__vllm_cfg__async_engine": True, "loss_fn__use_importance_sampling_correction": True,
}  # fmt: skip


def test_responses_of_older_policies_are_accepted_where_the_asynchronous_loop_has_what_they_need() -> None:
    assert faults(**ASYNC) == []
    settings = view(made(**ASYNC), section_of(made(**ASYNC)), 9)
    assert (settings.lag, settings.generation_share) == (1, None)
    assert recipe.lag_of(made()) is None
    assert settings.whole_steps == "grpo.async_grpo.enabled=false"
    (said,) = rules.notes(made(**ASYNC, grpo__use_leave_one_out_baseline=False))
    assert said.startswith("loss_fn.use_importance_sampling_correction is not used")
    (said,) = rules.notes(
        made(**ASYNC, grpo__use_leave_one_out_baseline=False, loss_fn__truncated_importance_sampling_type="icepop")
    )
    assert said.startswith("loss_fn.use_importance_sampling_correction of type icepop is not used")
    assert faults(**ASYNC, uecr__teacher__stays=True) == []
    assert faults(uecr__teacher__stays=True)[0].startswith("uecr.teacher.stays: got True")


def test_rewards_that_read_the_step_need_an_engine_that_answers_it_whole() -> None:
    """vLLM's asynchronous engine gives NeMo-RL's environments each response alone, in the synchronous loop as well."""
    engine = "policy__generation__vllm_cfg__async_engine"
    alone, whole = (view(made(**{engine: value}), section_of(made()), 9) for value in (True, False))
    assert alone.whole_steps == "policy.generation.vllm_cfg.async_engine=false"
    assert whole.whole_steps is None


def test_an_age_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="max_trajectory_age_steps: missing; expected an integer"):
        recipe.lag_of(made(grpo__async_grpo={"enabled": True}))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"policy__generation__colocated__enabled": True}, "policy.generation.colocated.enabled"),
        ({"policy__generation__vllm_cfg__async_engine": False}, "policy.generation.vllm_cfg.async_engine"),
        ({"loss_fn__use_importance_sampling_correction": False}, "loss_fn.use_importance_sampling_correction"),
        ({"grpo__use_dynamic_sampling": True}, "grpo.use_dynamic_sampling"),
        ({"grpo__async_grpo": {"enabled": True, "max_trajectory_age_steps": 0}},
         "grpo.async_grpo.max_trajectory_age_steps"),
        ({"grpo__reward_shaping": {"enabled": True}}, "grpo.reward_shaping.enabled"),
        ({"policy__generation__top_p": 0.95}, "policy.generation.top_p"),
        ({"uecr__teacher": None, "uecr__teachers": {"a": {"model_name": "x"}, "b": {"model_name": "y"}},
          "uecr__routing": {"key": "subject"}}, "uecr.teachers"),
    ],
)  # fmt: skip
def test_what_the_asynchronous_loop_lacks_is_refused(change: dict[str, Any], key: str) -> None:
    (fault,) = faults(**(ASYNC | change))
    assert fault.startswith(f"{key}: ")


def test_an_evaluation_does_not_stop_the_asynchronous_engine() -> None:
    found = faults(**ASYNC, uecr__data=OTHER_PROBLEMS, uecr__evaluation=EVALUATION)
    assert "uecr.evaluation.benchmarks" in [fault.partition(":")[0] for fault in found]


PLAYED: dict[str, Any] = {
    "data__train__dataset_name": DATASET, "data__train__env_name": "nemo_uecr", "env__nemo_uecr": {},
    "uecr__data": OTHER_PROBLEMS, "uecr__reward": ["math", "environment"],
    "uecr__environment": {"call": "game.py:Game"},
}  # fmt: skip


def test_an_environment_of_several_turns() -> None:
    assert faults(**PLAYED) == []
    given = made(**PLAYED)
    changes = {each.key: each.value for each in rules.adjusted(given, section_of(given))}
    assert changes["grpo.max_rollout_turns"] == 8
    assert changes["env.nemo_uecr.tokenizer"] == "models/student"
    rules.apply(given, rules.adjusted(given, section_of(given)))
    settings = view(given, section_of(given), 9)
    assert (settings.max_turns, settings.plays, settings.max_total_sequence_length) == (8, True, 512)
    assert not view(made(), section_of(made()), 9).plays


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"data__train__env_name": "math"}, "uecr.environment"),
        ({"uecr__environment__turn_tokens": 5}, "uecr.environment.turn_tokens"),
        ({"policy__generation__vllm_cfg__async_engine": True}, "uecr.environment"),
        ({"uecr__environment__role": "text"}, "uecr.environment.role"),
        ({"policy__generation__vllm_cfg__max_model_len": 600}, "policy.generation.vllm_cfg.max_model_len"),
    ],
)
def test_what_several_turns_lack_is_refused(change: dict[str, Any], key: str) -> None:
    assert key in [fault.partition(":")[0] for fault in faults(**(PLAYED | change))]


def test_turns_of_their_environments_need_room_alone() -> None:
    assert faults(grpo__max_rollout_turns=3) == []
    (fault,) = faults(grpo__max_rollout_turns=3, policy__generation__vllm_cfg__max_model_len=600)
    assert fault.startswith("policy.generation.vllm_cfg.max_model_len: got 600 with several turns")


def test_what_is_to_be_known_of_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"data__default__prompt_file": "prompts/cot.txt", "data__train__data_path": "rows.jsonl"}
    given = made(**files, checkpointing__enabled=False, data__validation={"data_path": "org/name"})
    assert any(said.startswith("checkpointing.enabled=false: nothing is saved") for said in rules.notes(given))
    assert [said.partition(":")[0] for said in rules.missing_files(given)] == [
        "data.default.prompt_file", "data.train.data_path",
    ]  # fmt: skip
    (tmp_path / "rows.jsonl").touch()
    assert len(rules.missing_files(given)) == 1


def test_messages_name_keys_as_a_recipe_has_them() -> None:
    for values, said in (
        ({"uecr__method": {"name": "uecr", "alpha": 1.0, "rho": 0.5, "tau_delta": 1.0}}, "++uecr.method.tau_entropy="),
        ({"uecr__teacher": None}, "choose ++uecr.method.name=grpo"),
        ({"uecr__teacher": None, "uecr__teachers": {"a": {"model_name": "x"}, "b": {"model_name": "y"}}},
         "write ++uecr.routing.key="),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=re.escape(said)):
            section_of(made(**values))


def test_layouts_that_nemo_rl_would_refuse_later() -> None:
    split = {"uecr__teacher__megatron_cfg__context_parallel_size": 2, "policy__sequence_packing__enabled": False}
    assert "uecr.teacher.sequence_packing.enabled=true" in layout_of(**split)[0]
    gathered = {"policy__dynamic_batching": {"enabled": True, "train_mb_tokens": 512, "logprob_mb_tokens": 512}}
    split = {"uecr__teacher__megatron_cfg__pipeline_model_parallel_size": 2, "policy__sequence_packing__enabled": False}
    assert "uecr.teacher.dynamic_batching.enabled=false" in layout_of(**split, **gathered)[0]


def test_an_evaluation_fits_the_generator() -> None:
    given = {"uecr__data": OTHER_PROBLEMS, "uecr__evaluation": EVALUATION}
    assert faults(**given) == []
    (fault,) = faults(**given, policy__generation__vllm_cfg__max_model_len=511)
    assert fault.endswith("takes 512 tokens")
    (fault,) = faults(**given, policy__generation__vllm_cfg__async_engine=True)
    assert fault.startswith("policy.generation.vllm_cfg.async_engine: got true")


# -- adjusted and ignored --------------------------------------------------------------------------------------------


def test_nothing_is_adjusted_without_a_reason() -> None:
    given = made()
    assert rules.adjusted(given, section_of(given)) == []


def test_each_adjustment_is_made_and_said() -> None:
    given = made(
        loss_fn__force_on_policy_ratio=True,
        policy__megatron_cfg__distributed_data_parallel_config={"overlap_param_gather": True},
        policy__generation__temperature=0.7,
        uecr__teacher__megatron_cfg={"tensor_model_parallel_size": 4, "sequence_parallel": True},
    )
    changes = rules.adjusted(given, section_of(given))
    assert {change.key: change.value for change in changes} == {
        "loss_fn.force_on_policy_ratio": False,
        "policy.megatron_cfg.distributed_data_parallel_config.overlap_param_gather": False,
        "policy.generation.vllm_cfg.logprobs_mode": "processed_logprobs",
        "policy.make_sequence_length_divisible_by": 4,
    }
    assert str(changes[0]).startswith("loss_fn.force_on_policy_ratio: True becomes False: ")
    rules.apply(given, changes)
    assert rules.adjusted(given, section_of(given)) == []


def test_adjustments_reach_models_as_well_as_mappings() -> None:
    native = SimpleNamespace(loss_fn=SimpleNamespace(force_on_policy_ratio=True), policy={"generation": {}})
    recipe.set_at(native, "loss_fn.force_on_policy_ratio", False)
    recipe.set_at(native, "policy.generation.vllm_cfg.logprobs_mode", "processed_logprobs")
    assert value_at(native, "loss_fn.force_on_policy_ratio") is False
    assert native.policy == {"generation": {"vllm_cfg": {"logprobs_mode": "processed_logprobs"}}}


def test_what_is_not_used_is_announced() -> None:
    (said,) = rules.notes(made())
    assert said.startswith("grpo.use_leave_one_out_baseline=True is not used")
    assert len(rules.notes(made(grpo__use_dynamic_sampling=True, grpo__normalize_rewards=False))) == 3


# -- what the adapter gets -------------------------------------------------------------------------------------------


def test_a_teacher_is_the_policy_as_a_frozen_scorer_at_temperature_one() -> None:
    given = made(
        policy__generation__temperature=0.7,
        policy__pretrained_checkpoint={"path": "x"},
        uecr__teacher__megatron_cfg={"context_parallel_size": 2},
        uecr__teacher__megatron_checkpoint="converted/iter_0000000",
    )
    section = section_of(given)
    made_policy = teacher_policy(section.active_teachers["teacher"], given["policy"], 320)
    layout = made_policy["megatron_cfg"]
    assert (made_policy["model_name"], made_policy["tokenizer"]["name"]) == ("models/teacher", "models/teacher")
    assert (layout["context_parallel_size"], layout["pipeline_model_parallel_size"]) == (2, 1)
    assert layout["peft"] == {"enabled": False}
    assert (layout["fp8_cfg"]["enabled"], layout["num_layers_in_first_pipeline_stage"]) == (False, None)
    assert made_policy["generation"]["temperature"] == 1.0
    assert made_policy["uecr"] == {"temperature": 1.0, "filters": "paper", "vocabulary": 320}
    assert made_policy["pretrained_checkpoint"] == {"path": "converted/iter_0000000", "format": "megatron_bridge"}
    assert "draft" not in made_policy
    assert given["policy"]["megatron_cfg"]["peft"]["enabled"], "the student's own policy is changed"
    assert "dedicated_gpus" not in made_policy


def test_a_teacher_computes_in_fp8_only_if_asked() -> None:
    given = made(uecr__teacher__megatron_cfg={"fp8_cfg": {"enabled": True}})
    policy = teacher_policy(section_of(given).active_teachers["teacher"], given["policy"], 320)
    assert policy["megatron_cfg"]["fp8_cfg"] == {"enabled": True, "fp8": "e4m3", "force_clear_fp8_caches": True}


def test_the_settings_are_the_recipes_values() -> None:
    given = made()
    settings = recipe.view(given, section_of(given), 300)
    assert settings.folder == Path("results/grpo/uecr")
    assert (settings.responses, settings.optimizer_steps, settings.steps) == (32, 2, 30)
    assert (settings.reference_kl, settings.temperature, settings.generation_share) == (0.01, 1.0, 0.6)
    assert settings.own_rewards is False
    assert (settings.filters, settings.vocabulary) == ("paper", 300)
    assert recipe.worker_section(settings) == {"temperature": 1.0, "filters": "paper", "vocabulary": 300}
    apart = made(policy__generation__colocated={"enabled": False}, policy__generation__top_p=0.9, uecr__folder="here")
    settings = recipe.view(apart, section_of(apart), 300)
    assert (settings.generation_share, settings.filters, settings.folder) == (None, "recipe", Path("here"))


def test_the_method_is_the_paper_methods_class() -> None:
    assert recipe.view(made(), section_of(made()), 300).method.settings().items() >= {"alpha": METHOD["alpha"]}.items()
