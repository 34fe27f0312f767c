"""The checks of NeMo-RL itself: the tree at hand passes, one with another name or signature is refused."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.load import flattened, load_nemo_config
from nemo_uecr.config.nemo_schema import NemoDataConfig
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.native_calls import UpstreamError, native_calls
from nemo_uecr.nemo.policy import PolicyMethods
from nemo_uecr.nemo.translate import master_config
from tests.config.shipped import CONFIGS, GIVEN, SCALES, nemo_run
from tests.nemo.source import SOURCE


@pytest.mark.parametrize("scale", SCALES)
def test_shipped_configurations_fit_nemo_rls_schema(nemo_rl: str, scale: str) -> None:
    config = load_nemo_config(CONFIGS / f"uecr_qwen3_{scale}.yaml", GIVEN[scale])
    made = upstream.native("MasterConfig")(**master_config(config))
    assert dict(made.grpo)["use_leave_one_out_baseline"] is False
    assert made.loss_fn.force_on_policy_ratio is False
    assert made.policy["megatron_cfg"]["distributed_data_parallel_config"]["overlap_param_gather"] is False


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
def translated() -> list[str]:
    return list(flattened(master_config(nemo_run())))


def lacking(names: list[str], known: list[str]) -> set[str]:
    """Those that are neither a key nor a section."""
    there = "\n".join(["", *known, ""])
    return {name for name in names if f"\n{name}\n" not in there and f"\n{name}." not in there}


def test_every_translated_key_is_one_that_nemo_rl_ships(shipped: list[str], translated: list[str]) -> None:
    """A misspelt key would be accepted by NeMo-RL's schema and read by nobody."""
    # 0.7 has no place for them; main requires the first three and ships the fourth.
    newer = {
        *(f"policy.generation.val_{key}" for key in ("temperature", "top_p", "top_k")),
        "policy.generation.vllm_cfg.logprobs_mode",
    }  # fmt: skip
    assert lacking(translated, shipped) - newer == {
        *(f"data.train.{key}" for key in (
            "dropped", "prompt_file", "system_prompt_file", "processor", "env_name",
        )),
        *(f"data.train.problems.{key}" for key in NemoDataConfig.model_fields),
        "policy.tokenizer.chat_template_kwargs.enable_thinking", "policy.uecr.temperature", "policy.uecr.filters",
        "policy.uecr.vocabulary", "policy.megatron_cfg.use_linear_ce_fusion_loss",
        "grpo.skip_reference_policy_logprobs_calculation",
        *(f"env.nemo_uecr.{key}" for key in ("num_workers", "reward", "correct_at", "dataset")),
        "env.should_log_nemo_gym_responses",  # read by the loop, and set in recipes of another environment
        # Handed to Megatron-Bridge's SchedulerConfig as it is; one of NeMo-RL's own recipes sets it.
        "policy.megatron_cfg.scheduler.override_opt_param_scheduler",
    }  # fmt: skip


def test_nothing_that_nemo_rl_ships_is_left_out(shipped: list[str], translated: list[str]) -> None:
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
    assert {name for name in lacking(shipped, translated) if not name.startswith(unused + newer)} == set()


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
