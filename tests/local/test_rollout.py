"""Sampling: its seeds, its filters, its ends, and prompts through the chat template."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nemo_uecr.config.schema import DataConfig
from nemo_uecr.data.problems import Problem
from nemo_uecr.local.models import TokenModel, load_model
from nemo_uecr.local.rollout import Decoding, draw
from nemo_uecr.local.sequences import Prompt, Response, encode_prompts
from nemo_uecr.study.task import build_tokenizer
from tests.local import tiny

CPU = torch.device("cpu")
PLAIN = Decoding(temperature=1.0, top_p=1.0, top_k=0, max_tokens=6)


@pytest.fixture(scope="module")
def student() -> TokenModel:
    return load_model(str(tiny.STUDENT), role="student", dtype="float32", device=CPU, master_weights=True)


def sample(
    model: TokenModel, prompts: Sequence[Prompt], decoding: Decoding, *, seed: int, microbatch: int
) -> list[Response]:
    """What a healthy model draws."""
    seeds = range(100 * seed, 100 * seed + len(prompts))
    responses, fault = draw(model, prompts, seeds, decoding, microbatch=microbatch)
    assert fault is None
    return responses


def prompt(*ids: int) -> Prompt:
    return Prompt(Problem(str(ids), "q", "a"), ids)


def data(*overrides: str) -> DataConfig:
    return tiny.configured(Path("unused"), *overrides).config.data


def fixed_logits(model: TokenModel, logits: dict[int, float], rest: float = -50.0) -> TokenModel:
    """The model with one next-token distribution everywhere: the output layer ignores its input."""
    module = copy.deepcopy(model.module)
    weight = torch.full((model.vocabulary, 1), rest)
    for token, value in logits.items():
        weight[token] = value
    module.lm_head = torch.nn.Linear(module.config.hidden_size, model.vocabulary)
    with torch.no_grad():
        module.lm_head.weight.zero_()
        module.lm_head.bias.copy_(weight[:, 0])
    return replace(model, module=module)


def test_micro_batches_change_no_draw(student: TokenModel) -> None:
    prompts = [prompt(9, 10, 11), prompt(12), prompt(13, 14)] * 3
    first = sample(student, prompts, PLAIN, seed=1, microbatch=9)
    assert sample(student, prompts, PLAIN, seed=1, microbatch=4) == first
    assert sample(student, prompts, PLAIN, seed=2, microbatch=9) != first


def test_end_tokens_and_truncation(student: TokenModel) -> None:
    end = student.tokenizer.eos_token_id
    at_once = fixed_logits(student, {end: 0.0})
    (response,) = sample(at_once, [prompt(9)], PLAIN, seed=0, microbatch=1)
    assert (response.token_ids, response.text, response.truncated) == ((end,), "", False)  # length 1, not empty
    never = fixed_logits(student, {20: 0.0})
    (response,) = sample(never, [prompt(9)], PLAIN, seed=0, microbatch=1)
    assert (response.token_ids, response.truncated) == ((20,) * 6, True)
    mixed = fixed_logits(student, {end: 0.0, 20: 0.5})
    for response in sample(mixed, [prompt(9)] * 40, PLAIN, seed=0, microbatch=40):
        ends = [place for place, token in enumerate(response.token_ids) if token == end]
        assert response.truncated == (not ends)
        assert ends in ([], [len(response.token_ids) - 1])
        assert len(response.token_ids) == 6 or ends


def test_every_configured_end_token_ends(student: TokenModel) -> None:
    module = copy.deepcopy(student.module)
    module.generation_config.eos_token_id = [20, student.tokenizer.eos_token_id]
    model = fixed_logits(replace(student, module=module), {20: 0.0})
    assert model.end_ids == {20, student.tokenizer.eos_token_id}
    (response,) = sample(model, [prompt(9)], PLAIN, seed=0, microbatch=1)
    assert response.token_ids == (20,)


def test_chat_template_in_non_thinking_mode() -> None:
    tokenizer = build_tokenizer()
    problem = Problem("p", "1+1?", "2")
    (encoded,) = encode_prompts([problem], tokenizer, data("data.prompt_template=Q: {question} {question}"))
    assert tokenizer.decode(encoded.token_ids) == (
        "<|im_start|>user\nQ: 1+1? 1+1?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    (thinking,) = encode_prompts(
        [problem], tokenizer, data("data.enable_thinking=true", "data.system_prompt=Be brief.")
    )
    assert tokenizer.decode(thinking.token_ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    )
