"""A run that is continued to more steps: Megatron's own schedule takes the new end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.nemo.translate import master_config
from tests.config.test_nemo import CONFIGS, GRPO


def schedule(steps: int, **changes: Any) -> Any:
    """Megatron's schedule as Megatron-Bridge builds it from our section, a global batch of 1008."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GRPO, f"train.steps={steps}"])
    ours = master_config(config, prompt_file="p")["policy"]["megatron_cfg"]
    given = ours["scheduler"] | changes
    group: dict[str, Any] = {"lr": 0.0, "weight_decay": 0.0, "params": []}
    return OptimizerParamScheduler(
        SimpleNamespace(param_groups=[group]),  # type: ignore[arg-type]
        init_lr=given["lr_warmup_init"], max_lr=ours["optimizer"]["lr"], min_lr=ours["optimizer"]["min_lr"],
        lr_warmup_steps=given["lr_warmup_iters"] * 1008, lr_decay_steps=given["lr_decay_iters"] * 1008,
        lr_decay_style=given["lr_decay_style"], start_wd=given["start_weight_decay"],
        end_wd=given["end_weight_decay"], wd_incr_steps=steps * 1008, wd_incr_style=given["weight_decay_incr_style"],
        use_checkpoint_opt_param_scheduler=False, override_opt_param_scheduler=given["override_opt_param_scheduler"],
    )  # fmt: skip


def test_more_steps_continue_the_schedule() -> None:
    pytest.importorskip("megatron.core")
    first = schedule(40)
    first.step(40 * 1008)
    saved, later = first.state_dict(), schedule(900)
    later.load_state_dict(saved)
    assert later.num_steps == 40 * 1008
    assert later.lr_decay_steps == 900 * 1008
    assert later.get_lr(later.optimizer.param_groups[0]) == first.get_lr(first.optimizer.param_groups[0])
    with pytest.raises(AssertionError):
        schedule(900, override_opt_param_scheduler=False).load_state_dict(saved)
