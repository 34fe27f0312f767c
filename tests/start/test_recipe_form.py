"""`config check`, `plan` and the checks before a run, of recipes: what is refused, and what is said of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.core.methods import METHODS
from nemo_uecr.data.manifest import chosen_problems
from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.nemo.recipe import view
from nemo_uecr.start.recipe_form import DIVIDES_MODELS, UNSEEN, accepted, described, layout
from tests.config.shipped import CONFIGS, GIVEN, GRPO, OTHERS, SCALES, nemo_job
from tests.data.made import write_jsonl
from tests.nemo.worlds import BASE, SIZES, job, world
from tests.plan.test_overlap import APART

# -- the shipped recipes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["uecr", *OTHERS])
def test_every_method_composes_at_each_scale(scale: str, name: str) -> None:
    words = [*GIVEN[scale], *(GRPO if name == "grpo" else [f"uecr.method.name={name}"])]
    made = accepted(load_recipe(CONFIGS / f"uecr_qwen3_{scale}.yaml", words))
    settings = view(made.values, made.section, 151_936)
    assert settings.method.name == name
    assert settings.folder == Path(f"runs/{name}_qwen3_{scale}")
    assert made.changes == []  # the paper's runs are what they say


@pytest.mark.parametrize("name", ["grpo_teacher_qwen3_4b", "grpo_teacher_qwen3_8b"])
def test_teacher_recipes_need_no_teacher(name: str) -> None:
    made = accepted(load_recipe(CONFIGS / f"{name}.yaml", []))
    assert (made.section.method.name, dict(made.teachers), made.changes) == ("grpo", {}, [])
    assert layout(made, with_models=True) == DIVIDES_MODELS


@pytest.mark.parametrize(("scale", "key"), [("1p7b", "uecr.teacher.model_name"), ("4b", "uecr.data.subset")])
def test_what_the_paper_leaves_open_must_be_given(scale: str, key: str) -> None:
    given = [word for word in GIVEN[scale] if not word.startswith(key)]
    with pytest.raises(ConfigError, match=f"^missing {key}; write {key}=VALUE$"):
        accepted(load_recipe(CONFIGS / f"uecr_qwen3_{scale}.yaml", given))


def test_the_shipped_recipes_inherit_nothing_of_nemo_rls() -> None:
    for path in {*CONFIGS.glob("*.yaml")} - {CONFIGS / "paper_base.yaml"}:
        origins = set(load_recipe(path, []).origins.values())
        assert {Path(each).parent.resolve() for each in origins} == {CONFIGS}


# -- what is refused -------------------------------------------------------------------------------------------------

BAD = {
    "++uecr.teacher.megatron_cfg.pipeline_model_parallel_size=8": "pipeline_model_parallel_size: got 8, expected a "
    "divisor of the model's 4 layers",
    "policy.max_total_sequence_length=5000": "but {}/student has 4096 positions",
    "uecr.data.train={}/keys.jsonl": "no field 'question'",
    "uecr.data.difficulty_key=level": "uecr.data.difficulty_key=null uecr.data.difficulty_low=null "
    "uecr.data.difficulty_high=null",
    "uecr.data.subset=100": "100 problems are left to train on; expected at least",
    "uecr.data.subset=300": "200 problems of difficulty 5.0 to 7.0; expected at least uecr.data.subset=300",
    "++uecr.evaluation.benchmarks.a={}/none.jsonl": "evaluation.benchmarks.a: no file /",
    "policy.megatron_cfg.enabled=false": "cannot be trained as it is: policy.megatron_cfg.enabled",
    "uecr.method.nme=puu": "the recipe has no key uecr.method.nme, the nearest is uecr.method.name",
    "++uecr.method.alfa=1": "unknown key uecr.method.alfa (set on the command line)",
}


@pytest.mark.parametrize("change", BAD)
def test_what_cannot_work_is_refused_in_one_line(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*world(tmp_path), change.format(tmp_path)]
    assert entry_point(["config", "check", str(BASE), *given]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert BAD[change].format(tmp_path) in said
    assert not (tmp_path / "run").exists()


def test_every_refused_key_is_printed_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = ["policy.megatron_cfg.enabled=false", "++grpo.advantage_clip_low=2", "++data.train.processor=vlm_any"]
    assert entry_point(["config", "check", str(BASE), *world(tmp_path), *several]) == 2
    printed = capsys.readouterr()
    assert [line.partition("; ")[0] for line in printed.out.splitlines()] == [
        "refused: policy.megatron_cfg.enabled: got False",
        "refused: grpo.advantage_clip_low: got 2",
        "refused: data.train.processor: got 'vlm_any'",
    ]
    assert printed.err.endswith(
        "cannot be trained as it is: policy.megatron_cfg.enabled, grpo.advantage_clip_low, data.train.processor\n"
    )


def test_a_file_of_the_former_form_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.yaml").write_text("backend: nemo_rl\nstudent: {model_name: x}\n")
    for command in (["config", "check"], ["plan"], ["doctor"]):
        assert entry_point([*command, str(tmp_path / "old.yaml")]) == 2
        assert "docs/nemo-rl.md" in capsys.readouterr().err


# -- what is said ----------------------------------------------------------------------------------------------------


def test_a_check_says_what_is_adjusted_ignored_and_placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = [
        "loss_fn.force_on_policy_ratio=true", "grpo.use_leave_one_out_baseline=true",
        "++uecr.teacher.megatron_cfg.tensor_model_parallel_size=2",
        "++uecr.teacher.megatron_cfg.sequence_parallel=true",
    ]  # fmt: skip
    assert entry_point(["config", "check", str(BASE), *world(tmp_path), *changes]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = [
        "objective: loss = PG(A; clip 0.2/0.2) + 0.001 KL3(ref)",
        "adjusted: loss_fn.force_on_policy_ratio: True becomes False: ",
        "adjusted: policy.make_sequence_length_divisible_by: 1 becomes 2: ",
        "note: grpo.use_leave_one_out_baseline=True is not used: ",
        f"student: {tmp_path}/student on 8 GPUs, not split, 8 copies, scored 4096 tokens at once",
        f"teacher: {tmp_path}/teacher on 8 GPUs, tensor 2, 4 copies, scored 4096 tokens at once",
        "vLLM: 8 GPUs, 1 an engine",
    ]
    for start in starts:
        assert any(line.startswith(start) for line in lines), (start, lines)
    assert "layout: its sizes divide the GPUs and the models; plan says whether the memory is enough" in lines
    assert lines[-1] == f"ok: {BASE}: accepted"


def test_the_objective_names_the_kl_of_the_recipe() -> None:
    words = ["uecr.kl=recipe", "loss_fn.reference_policy_kl_type=k2", "loss_fn.ratio_clip_max=0.28"]
    assert described(nemo_job(*words))[0].startswith("objective: loss = PG(A; clip 0.2/0.28) + 0.001 KL2(ref); ")


def test_the_objective_names_what_the_recipe_makes_of_the_clip_and_the_ratio() -> None:
    words = [
        "++loss_fn.use_cispo=true", "++loss_fn.ratio_clip_c=10.0", "++loss_fn.sequence_level_importance_ratios=true",
        *APART,
    ]  # fmt: skip
    said = "PG(A; clip 0.2/0.2, dual clip 10, CISPO, ratio of the sequence, ratio to the policy that sampled)"
    assert described(nemo_job(*words))[0].startswith(f"objective: loss = {said} + 0.001 ")
    assert described(nemo_job())[0].startswith("objective: loss = PG(A; clip 0.2/0.2) + 0.001 ")


def test_show_prints_every_value_with_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_point(["config", "show", str(BASE), *GIVEN["1p7b"]]) == 0
    shown = [line.partition("  #") for line in reversed(capsys.readouterr().out.splitlines())]
    lines = {value.strip(): origin.strip() for value, _, origin in shown}  # of two equal lines the first
    assert lines["model_name: Qwen/Qwen3-1.7B-Base"] == str(BASE)
    assert lines["model_name: teachers/4b"] == "override"
    assert lines["num_prompts_per_step: 126"] == str(BASE.with_name("paper_base.yaml"))


def test_models_that_are_not_here_are_left_to_the_start(tmp_path: Path) -> None:
    given = world(tmp_path)
    assert layout(job(tmp_path), with_models=True) != UNSEEN
    assert layout(job(tmp_path, f"uecr.teacher.model_name={tmp_path}/elsewhere"), with_models=True) == UNSEEN
    (tmp_path / "student" / "config.json").write_text(json.dumps(SIZES | {"model_type": "gemma2"}))
    odd = accepted(load_recipe(BASE, given))
    assert layout(odd, with_models=True) == UNSEEN
    deep = "++uecr.teacher.megatron_cfg.pipeline_model_parallel_size=8"
    with pytest.raises(ConfigError, match="got 8, expected a divisor of the model's 4 layers"):
        layout(accepted(load_recipe(BASE, [*given, deep])), with_models=True)


def test_a_mixture_is_judged_by_its_folder(tmp_path: Path) -> None:
    """One that was tried by its sizes, as a teacher on the student's GPUs; another family is refused by its name."""
    given = world(tmp_path)
    values = SIZES | {
        "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    }  # fmt: skip
    file = tmp_path / "teacher" / "config.json"
    file.write_text(json.dumps(values))
    ranks = "++uecr.teacher.megatron_cfg.expert_model_parallel_size"
    for count in (1, 8):
        job = accepted(load_recipe(BASE, [*given, f"{ranks}={count}"]))
        assert layout(job, with_models=True) == DIVIDES_MODELS
    with pytest.raises(ConfigError, match="got 16; pipeline"):
        layout(accepted(load_recipe(BASE, [*given, f"{ranks}=16"])), with_models=True)
    for odd in ({"model_type": "gpt_oss"}, {"model_type": "x", "num_experts": 0, "text_config": {"num_experts": 4}}):
        file.write_text(json.dumps(values | odd))
        message = (
            rf"^uecr\.teacher\.model_name: got .*teacher, a mixture of experts of model_type '{odd['model_type']}'"
        )
        with pytest.raises(ConfigError, match=message):
            layout(accepted(load_recipe(BASE, given)), with_models=True)


def test_a_mixture_that_is_not_here_is_known_by_its_name_or_refused(tmp_path: Path) -> None:
    """Only a folder of the cluster's is left to the start of the run."""
    given, ranks = world(tmp_path), "++uecr.teacher.megatron_cfg.expert_model_parallel_size=8"
    for name in ("openai/gpt-oss-20b", "see the guide"):
        with pytest.raises(ConfigError, match=rf"^uecr\.teacher\.model_name: got '{name}', which is split over 8"):
            layout(accepted(load_recipe(BASE, [*given, ranks, f"uecr.teacher.model_name='{name}'"])), with_models=True)
    elsewhere = accepted(load_recipe(BASE, [*given, ranks, "uecr.teacher.model_name=/models/mixture"]))
    assert layout(elsewhere, with_models=True) == UNSEEN


def test_scaled_positions_are_nemo_rls_matter(tmp_path: Path) -> None:
    """A model that states its scaling, or a recipe that does, may be longer than its first positions."""
    given = [*world(tmp_path), "policy.max_total_sequence_length=5000"]
    with pytest.raises(ConfigError, match="4096 positions"):
        layout(accepted(load_recipe(BASE, given)), with_models=True)
    scaled = "++policy.hf_config_overrides.rope_scaling={rope_type: yarn, factor: 4.0}"
    with pytest.raises(ConfigError, match=r"^uecr\.teacher\.max_total_sequence_length: .* 4096 positions"):
        layout(accepted(load_recipe(BASE, [*given, scaled])), with_models=True)
    both = [scaled, scaled.replace("++policy", "++uecr.teacher")]
    assert layout(accepted(load_recipe(BASE, [*given, *both])), with_models=True) != UNSEEN


def test_a_recipe_with_problems_of_nemo_rls_needs_none_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = [
        "data.train={dataset_name: OpenMathInstruct-2, env_name: math, problems: null}", "~env.nemo_uecr",
        "+env.math={num_workers: 8}", "uecr.data=null", "uecr.reward=null", "uecr.evaluation=null",
        "policy.tokenizer.chat_template_kwargs=null", "data.shuffle=true",
    ]  # fmt: skip
    assert entry_point(["config", "check", str(BASE), *GIVEN["1p7b"], *theirs]) == 0
    assert "ok: " in capsys.readouterr().out


# -- problems and conversions ----------------------------------------------------------------------------------------


def test_problems_are_kept_by_difficulty_and_drawn_by_seed(tmp_path: Path) -> None:
    rows = [{"question": f"q{place}", "final_answer": 1, "difficulty": place % 10} for place in range(50)]
    write_jsonl(tmp_path / "p.jsonl", rows)
    data = nemo_job(f"uecr.data.train={tmp_path}/p.jsonl").section.data
    assert data is not None
    kept = chosen_problems(data, 0)
    assert [problem.question for problem in kept] == [f"q{place}" for place in range(50) if place % 10 in (5, 6, 7)]
    few = data.model_copy(update={"subset": 4})
    drawn = [chosen_problems(few, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(problem in kept for problem in drawn[0])
    write_jsonl(tmp_path / "p.jsonl", [row | {"difficulty": f"Level {row['difficulty']}"} for row in rows])
    assert chosen_problems(data, 0) == kept
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1"}]
    write_jsonl(tmp_path / "p.jsonl", [row | {"question": talk} for row in rows])
    with pytest.raises(DataError, match=r"problem '1' has turns before its question.* in uecr\.data\.question_key="):
        chosen_problems(data, 0)
    (tmp_path / "p.jsonl").unlink()
    with pytest.raises(DataError, match=r"^uecr\.data\.train: no file .*p\.jsonl"):
        chosen_problems(data, 0)


def test_every_method_of_the_paper_is_among_those_that_compose() -> None:
    assert set(OTHERS) < METHODS.keys()
