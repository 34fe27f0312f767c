"""Real vLLM: it samples with the log-probabilities that scoring finds, and many engines answer as one does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.generation.engines import Decoding, Request
from nemo_uecr.nemo.evaluation import answers_of
from nemo_uecr.nemo.upstream import WorkerError
from nemo_uecr.nemo.worker_scoring import MicroBatch, ModelParallel, ScoreRequest, score_columns
from tests.nemo.local_ray import local_ray

pytestmark = pytest.mark.real

#: vLLM in this process on a CPU, without compilation.
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}  # fmt: skip
TEMPERATURE = 0.7
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9]]
VOCABULARY = 512


def make_model() -> Any:
    """A random Qwen3 whose heads are as wide as vLLM's CPU attention asks for."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=32, intermediate_size=96, max_position_embeddings=128, tie_word_embeddings=False,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).float().eval()


def test_generated_log_probabilities_are_the_scored_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setitem(os.environ, name, value)
    from vllm import LLM, SamplingParams

    model = make_model()
    model.save_pretrained(tmp_path)
    engine = LLM(
        model=str(tmp_path), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=64, seed=1,
        logprobs_mode="processed_logprobs",
    )  # fmt: skip
    sampling = SamplingParams(
        n=4, temperature=TEMPERATURE, max_tokens=12, logprobs=0, ignore_eos=True, detokenize=False
    )
    requests = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    found = engine.generate(requests, sampling, use_tqdm=False)
    rows = [(prompt, answer) for prompt, request in zip(PROMPTS, found, strict=True) for answer in request.outputs]

    request = ScoreRequest({"rollout_logp": TEMPERATURE}, False, VOCABULARY, 32)
    for prompt, answer in rows:
        ids = torch.tensor([[*prompt, *answer.token_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits
        micro = MicroBatch(ids, torch.tensor([ids.shape[1]]), None)
        scored = score_columns(logits, micro, request, ModelParallel(None, None))["rollout_logp"][0, len(prompt) :]
        values = [step[token].logprob for token, step in zip(answer.token_ids, answer.logprobs, strict=True)]
        torch.testing.assert_close(scored, torch.tensor(values), atol=1e-5, rtol=0)
        assert len(values) == 12


DRAWN = Decoding(temperature=0.9, top_p=0.95, top_k=20, max_tokens=8)
END = frozenset({7})


def make_workers(folder: str) -> list[Any]:
    import ray

    @ray.remote(num_cpus=0)
    class Worker:
        """As much of NeMo-RL's generation worker as is used: an engine under ``llm``."""

        def __init__(self) -> None:
            from vllm import LLM

            self.llm = LLM(
                model=folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=64, seed=1
            )

    return [Worker.remote() for _ in range(2)]


def test_two_workers_answer_as_one_engine_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("vllm")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setitem(os.environ, name, value)
    make_model().save_pretrained(tmp_path)
    with local_ray(ENVIRONMENT):
        actors = make_workers(str(tmp_path))
        requests = [Request((3, 1 + row, 4), seed=100 + row) for row in range(5)]
        both = [("vllm-0", actors[0]), ("vllm-1", actors[1])]
        first, again, alone = (
            answers_of(workers, requests, DRAWN, END, seconds=300) for workers in (both, both, both[:1])
        )
        assert first == again == alone
        assert len({answer.token_ids for answer in first}) == 5
        assert all(answer.truncated == (answer.token_ids[-1] not in END) for answer in first)
        ray.kill(actors[1])
        with pytest.raises(WorkerError, match="generate for evaluation: worker vllm-1 died"):
            answers_of(both, requests, DRAWN, END, seconds=300)
