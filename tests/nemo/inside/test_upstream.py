"""The checks of NeMo-RL itself: the tree at hand passes, one with another name or signature is refused."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.load import flattened
from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.native_calls import UpstreamError, native_calls
from nemo_uecr.nemo.policy import PolicyMethods
from tests.config.shipped import CONFIGS
from tests.nemo.source import SOURCE

#: What a user names on top of a recipe of the paper's.
GIVEN = {
    "uecr_qwen3_4b": ["uecr.teacher.model_name=teachers/8b", "uecr.data.subset=2000"],
    "uecr_qwen3_1p7b": ["uecr.teacher.model_name=teachers/4b"],
}  # fmt: skip


def values_of(name: str) -> dict[str, Any]:
    return load_recipe(CONFIGS / f"{name}.yaml", GIVEN[name]).values


@pytest.fixture
def shipped(nemo_rl: str) -> list[str]:
    """The keys of NeMo-RL's own Megatron configuration."""
    from omegaconf import OmegaConf

    utils = importlib.import_module("nemo_rl.utils.config")
    utils.register_omegaconf_resolvers()
    path = Path(str(SOURCE)) / "examples" / "configs" / "grpo_math_1B_megatron.yaml"
    tree: Any = OmegaConf.to_container(utils.load_config(str(path)), resolve=False)
    return list(flattened(tree))


@pytest.fixture
def papers() -> list[str]:
    return list(flattened(values_of("uecr_qwen3_4b")))


def lacking(names: list[str], known: list[str]) -> set[str]:
    """Those that are neither a key nor a section."""
    there = "\n".join(["", *known, ""])
    return {name for name in names if f"\n{name}\n" not in there and f"\n{name}." not in there}


def test_every_key_of_the_papers_recipes_is_one_that_nemo_rl_ships(shipped: list[str], papers: list[str]) -> None:
    """A misspelt key would be accepted by NeMo-RL's schema and read by nobody."""
    # 0.7 has no place for them; main requires the first three and ships the fourth.
    newer = {
        *(f"policy.generation.val_{key}" for key in ("temperature", "top_p", "top_k")),
        "policy.generation.vllm_cfg.logprobs_mode",
    }  # fmt: skip
    ours = ("uecr.", "env.nemo_uecr", "data.train.")
    assert {name for name in lacking(papers, shipped) - newer if not name.startswith(ours)} == {
        "policy.tokenizer.chat_template_kwargs.enable_thinking", "policy.megatron_cfg.use_linear_ce_fusion_loss",
        "grpo.skip_reference_policy_logprobs_calculation",
        # Handed to Megatron-Bridge's SchedulerConfig as it is; one of NeMo-RL's own recipes sets it.
        "policy.megatron_cfg.scheduler.override_opt_param_scheduler",
    }  # fmt: skip


def test_nothing_that_nemo_rl_ships_is_left_out(shipped: list[str], papers: list[str]) -> None:
    """NeMo-RL reads most keys with [...]; one that is missing would end the run late."""
    unused = (
        "policy.dtensor_cfg", "policy.generation.mcore_generation_config", "policy.megatron_cfg.peft", "policy.draft",
        "policy.dynamic_batching", "policy.optimizer", "policy.scheduler", "data_plane", "data.default", "data.train",
        "env.math",
        "grpo.reward_shaping", "grpo.reward_scaling", "grpo.async_grpo", "loss_fn", "logger.mlflow.tracking_uri",
    )  # fmt: skip
    # Main's own, each read only where it is given or behind a switch that is off.
    newer = (
        "grpo.stop_at_validation", "grpo.val_start_at", "grpo.val_num_generations_per_prompt", "reward_penalties",
        "logger.wandb.log_nemo_gym_full_result_tables", "policy.generation.refit_", "policy.sequence_packing",
        "policy.generation.real_quant_export_cpu_offload", "policy.tokenizer.use_fastokens",
        *(f"policy.generation.vllm_cfg.{key}" for key in ("http_refit", "zmq_refit", "reset_encoder_cache")),
        *(f"policy.megatron_cfg.{key}" for key in (
            "checkpoint", "cuda_graph_", "fine_grained_activation_offloading", "fused_linear_logprobs_chunk_size",
            "model_overrides", "offload_modules", "optimizer.overlap_cpu_optimizer_d2h_h2d",
            "use_fused_linear_logprobs", "use_gloo_process_groups",
        )),
    )  # fmt: skip
    assert {name for name in lacking(shipped, papers) if not name.startswith(unused + newer)} == set()


def test_every_name_of_the_table_is_missed(nemo_rl: str) -> None:
    names = sorted({(each.module, each.name.split(".")[0]) for each in native_calls("driver").called})
    assert len(names) > 20
    for module, name in names:
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(importlib.import_module(module), name)
            with pytest.raises((UpstreamError, AttributeError), match=name):
                upstream.check()


def test_conversions_are_kept_where_nemo_rl_keeps_them(nemo_rl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "HF_HOME", "NRL_MEGATRON_CHECKPOINT_DIR"):
        monkeypatch.setenv(name or "HF_HOME", name and f"/{name}")
        assert str(upstream.conversions()) == upstream.native("get_megatron_checkpoint_dir")()


def test_what_the_loop_calls_of_ours_is_found_in_its_source(nemo_rl: str) -> None:
    """`check_passed` compares nothing where it finds no call."""
    for row in native_calls("driver").passed:
        source = inspect.getsource(importlib.import_module(row.module))
        functions = [node for node in ast.parse(source).body if getattr(node, "name", "") == row.function]
        (function,) = functions
        assert f"{row.call}(" in ast.unparse(function), row.call


def test_every_method_of_ours_that_overrides_is_checked(nemo_rl: str) -> None:
    replaced = {row.name for row in native_calls("driver").replaced}
    for name in vars(PolicyMethods):
        if name in vars(upstream.native("Policy")) and not name.startswith("__"):
            assert f"Policy.{name}" in replaced
