"""NeMo-RL's own launch scripts and shipped recipes, unchanged, with a section `uecr`."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.nemo import upstream
from tests.nemo.inside.stand_ins import GROUP, PROMPTS, STEPS, Seen, launch, local_problems, saved_batches, shrunk
from tests.nemo.inside.stand_ins import stand_ins as stand_ins

LLM = "recipes/llm/"


@pytest.mark.parametrize("recipe", ["grpo_math_8B_megatron.yaml", f"{LLM}grpo-qwen3-8b-base-1n8g-megatron-lora.yaml"])
def test_a_shipped_recipe(recipe: str, tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, recipe, [*shrunk(tmp_path), *local_problems(tmp_path)])
    assert stand_ins.policy.given["fqn"] == upstream.WORKER_FQN
    saved = saved_batches(tmp_path)
    assert len(saved) == STEPS
    for batch in saved:
        assert batch.tensors["task_reward"].view(PROMPTS, GROUP).tolist() == [[1.0, 0.0, 0.0, 1.0]] * PROMPTS
        assert bool((batch.tensors["teacher_entropy"][batch.tensors["mask"].bool()] > 0).all())
    assert stand_ins.clusters[0]["max_colocated_worker_groups"] == 3
