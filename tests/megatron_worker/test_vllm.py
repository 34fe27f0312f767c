"""vLLM's own log-probabilities of what it sampled are those that scoring finds, column by column."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.megatron_worker.columns import ModelParallel, score_columns
from nemo_uecr.megatron_worker.layout import MicroBatch
from nemo_uecr.megatron_worker.request import ScoreRequest

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


@pytest.mark.real
@pytest.mark.slow
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

    width = max(len(prompt) + len(answer.token_ids) for prompt, answer in rows)
    ids, generated = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width)
    mask, lengths = torch.zeros(len(rows), width, dtype=torch.bool), torch.zeros(len(rows), dtype=torch.long)
    for row, (prompt, answer) in enumerate(rows):
        tokens = [*prompt, *answer.token_ids]
        ids[row, : len(tokens)], lengths[row] = torch.tensor(tokens), len(tokens)
        mask[row, len(prompt) : len(tokens)] = True
        values = [step[token].logprob for token, step in zip(answer.token_ids, answer.logprobs, strict=True)]
        generated[row, len(prompt) : len(tokens)] = torch.tensor(values)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    request = ScoreRequest((TEMPERATURE,), False, VOCABULARY, 32)
    scored = score_columns(logits, MicroBatch(ids, lengths, None), request, ModelParallel(None, None))["logp_0"]
    assert int(mask.sum()) == len(rows) * 12
    torch.testing.assert_close(scored[mask], generated[mask], atol=1e-5, rtol=0)
    batch, handed_out = through_the_adapter(model, ids, lengths, mask)
    torch.testing.assert_close(handed_out[mask], generated[mask], atol=1e-5, rtol=0)
    # The record's own column is at temperature 1: divided by T_r again it would be another one.
    cold = model_logp(model, ids, 1.0)
    torch.testing.assert_close(batch.old_logp_BT[mask], cold[mask], atol=1e-5, rtol=0)
    assert float((cold - generated)[mask].abs().max()) > 0.1
    assert torch.equal(batch.mask_BT, mask)
    assert batch.group_B.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def model_logp(model: Any, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    """[B, S] log-probability of each token by the definition."""
    with torch.no_grad():
        logp = (model(input_ids=ids).logits / temperature).log_softmax(dim=-1)
    found = logp[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(found, (1, 0))


def through_the_adapter(
    model: Any, ids: torch.Tensor, lengths: torch.Tensor, mask: torch.Tensor
) -> tuple[Any, torch.Tensor]:
    """The record of `core` that the adapter builds from a generated batch, and the column that its loop gets."""
    from nemo_uecr.config.load import load_nemo_config
    from nemo_uecr.nemo_adapter.context import StepContext
    from nemo_uecr.nemo_adapter.estimator import UecrEstimator
    from nemo_uecr.nemo_adapter.launcher import run_spec
    from nemo_uecr.nemo_adapter.policy import make_uecr_policy

    class Scorer:
        data_parallel_size = 1

        def prepare_for_lp_inference(self) -> None: ...

        def score_tokens(self, data: Any, request: ScoreRequest) -> dict[str, Any]:
            with torch.no_grad():
                logits = model(input_ids=data["input_ids"]).logits
            micro = MicroBatch(data["input_ids"], data["input_lengths"], None)
            answer = score_columns(logits, micro, request, ModelParallel(None, None))
            return answer | {"terms": [request.terms] * ids.shape[0]}

    path = Path(__file__).resolve().parents[2] / "examples" / "configs" / "uecr_qwen3_1p7b.yaml"
    changes = [
        "method.name=grpo",
        "teacher.model_name=null",
        "rollout.prompts_per_step=3",
        "rollout.responses_per_prompt=4",
        "train.minibatch_responses=12",
    ]
    config = load_nemo_config(
        path, [*changes, f"student.vocabulary={VOCABULARY}", f"rollout.temperature={TEMPERATURE}",
               "cluster.gpus_per_node=1", "scoring.chunk_tokens=32"],
    )  # fmt: skip
    context = StepContext(run_spec(config), completed_steps=0, tokenizer=None)
    policy = make_uecr_policy(Scorer)(context=context, teacher=None)
    data = {
        "input_ids": ids, "input_lengths": lengths, "token_mask": mask.float(), "sample_mask": torch.ones(len(ids)),
    }  # fmt: skip
    handed_out = policy.get_logprobs(data)["logprobs"]
    rollouts = {"idx": [0] * 4 + [1] * 4 + [2] * 4, "truncated": torch.zeros(len(ids))}
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0] * 3)
    UecrEstimator(context).compute_advantage(ids[:, :3], rewards, mask.float(), rollouts, handed_out, None)
    return context.outcome.batch, handed_out
