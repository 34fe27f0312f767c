"""Sampling: its seeds, its filters, its ends, and prompts through the chat template."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

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
    return load_model(str(tiny.STUDENT), role="student", dtype="float32", device=CPU, trained=True)


def sample(
    model: TokenModel, prompts: Sequence[Prompt], decoding: Decoding, *, seed: int, microbatch: int
) -> list[Response]:
    """What a healthy model draws."""
    drawn = draw(model, prompts, decoding, seed=seed, microbatch=microbatch)
    assert drawn.fault is None
    return drawn.responses


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


def drawn(model: TokenModel, decoding: Decoding, count: int = 400) -> Counter[int]:
    responses = sample(model, [prompt(9, 10)] * count, replace(decoding, max_tokens=1), seed=11, microbatch=count)
    return Counter(response.token_ids[0] for response in responses)


def test_seed_fixes_the_draws(student: TokenModel) -> None:
    prompts = [prompt(9, 10, 11), prompt(12), prompt(13, 14)] * 3
    first = sample(student, prompts, PLAIN, seed=1, microbatch=4)
    torch.manual_seed(99)  # the global stream plays no part
    assert sample(student, prompts, PLAIN, seed=1, microbatch=4) == first
    assert sample(student, prompts, PLAIN, seed=2, microbatch=4) != first


def test_micro_batches_have_their_own_streams(student: TokenModel) -> None:
    """What other micro-batches hold, and whether they are sampled at all, does not change a micro-batch's draws."""
    ours, others = [prompt(9, 10)] * 4, [prompt(12), prompt(13, 14, 15), prompt(16), prompt(17)]
    first = sample(student, [*ours, *others], PLAIN, seed=1, microbatch=4)[:4]
    assert sample(student, [*ours, *reversed(others)], PLAIN, seed=1, microbatch=4)[:4] == first
    assert sample(student, ours, PLAIN, seed=1, microbatch=4) == first
    assert sample(student, [*others, *ours], PLAIN, seed=1, microbatch=4)[4:] != first  # another place, other draws


def test_temperature_changes_the_distribution_as_it_should(student: TokenModel) -> None:
    """Logits 0 and ln 3: p = 1/4, 3/4 at T = 1; 1/(1 + 3^2) = 0.1 at T = 0.5. 400 draws: 4 sigma = 0.087, 0.06."""
    model = fixed_logits(student, {20: 0.0, 21: math.log(3)})
    assert drawn(model, PLAIN)[20] / 400 == pytest.approx(0.25, abs=0.087)
    cold = drawn(model, replace(PLAIN, temperature=0.5))
    assert cold[20] / 400 == pytest.approx(0.1, abs=0.06)
    assert drawn(model, replace(PLAIN, temperature=0.0)) == {21: 400}  # greedy


def test_top_k_and_top_p_cut_the_tail(student: TokenModel) -> None:
    """p = 0.5, 0.3, 0.15, 0.05: a nucleus of 0.7 needs the first two, one of 0.9 the first three."""
    model = fixed_logits(student, {20: math.log(0.5), 21: math.log(0.3), 22: math.log(0.15), 23: math.log(0.05)})
    assert set(drawn(model, replace(PLAIN, top_p=0.7))) == {20, 21}
    assert set(drawn(model, replace(PLAIN, top_p=0.9))) == {20, 21, 22}
    assert set(drawn(model, replace(PLAIN, top_k=2))) == {20, 21}
    assert set(drawn(model, PLAIN)) == {20, 21, 22, 23}


def test_left_padding_does_not_change_greedy_answers(student: TokenModel) -> None:
    greedy = replace(PLAIN, temperature=0.0)
    prompts = [prompt(9, 10, 11, 12, 13, 14), prompt(12), prompt(13, 14)]
    together = sample(student, prompts, greedy, seed=0, microbatch=3)
    assert sample(student, prompts, greedy, seed=0, microbatch=1) == together


def test_checkpoints_own_sampling_defaults_do_not_leak(student: TokenModel) -> None:
    """Defaults that would forbid, punish, sharpen or cut change nothing, and are put back."""
    own = GenerationConfig(
        do_sample=True,
        temperature=0.01,
        top_k=1,
        top_p=0.01,
        min_p=0.9,
        repetition_penalty=5.0,
        no_repeat_ngram_size=1,
        bad_words_ids=[[20]],
        suppress_tokens=[21],
        forced_bos_token_id=30,
        min_new_tokens=5,
        eos_token_id=student.tokenizer.eos_token_id,
    )
    prompts = [prompt(9, 10), prompt(20, 21)] * 6
    expected = sample(student, prompts, PLAIN, seed=4, microbatch=12)
    module = copy.deepcopy(student.module)
    module.generation_config = own
    assert sample(replace(student, module=module), prompts, PLAIN, seed=4, microbatch=12) == expected
    assert module.generation_config is own


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
