"""Sampling: its seeds, its filters, its ends, and prompts through the chat template."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from nemo_uecr.data.benchmarks import load_benchmarks
from nemo_uecr.data.problems import Problem
from nemo_uecr.evaluation import runner
from nemo_uecr.evaluation.runner import EvaluationSettings
from nemo_uecr.generation.engines import ModelTokens
from nemo_uecr.generation.prompts import ChatSettings
from nemo_uecr.local.rollout import Decoding, draw, samples_of
from nemo_uecr.local.sequences import Prompt, Response, Sequences
from nemo_uecr.local.token_model import TokenModel
from tests.evaluation.tiny import save_tokenizer
from tests.local import tiny
from tests.responses.tables import records

PLAIN = Decoding(temperature=1.0, top_p=1.0, top_k=0, max_tokens=6)


@pytest.fixture(scope="module")
def student() -> TokenModel:
    return tiny.load()


def sample(
    model: TokenModel, prompts: Sequence[Prompt], decoding: Decoding, *, seed: int, microbatch: int
) -> list[Response]:
    """What a healthy model draws."""
    seeds = range(100 * seed, 100 * seed + len(prompts))
    responses = draw(model, prompts, seeds, decoding, microbatch=microbatch)
    assert all(response.finite for response in responses)
    return responses


def prompt(*ids: int) -> Prompt:
    return Prompt(Problem(str(ids), "q", "a"), ids)


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


def test_a_response_to_a_prompt_that_opens_a_thought_begins_within_it(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokens = ModelTokens(AutoTokenizer.from_pretrained(tmp_path), frozenset())
    ends = ("assistant\n<think>\n", "assistant\n<think>\n\n</think>\n\n", "What does <think> mean?")
    prompts = [prompt(*tokens.tokenizer(text)["input_ids"]) for text in ends]
    sequences = Sequences(prompts, [Response((1,), truncated=False, text=r"\boxed{5}")] * len(ends))
    assert [each.thinking for each in samples_of(1, sequences, tiny.configured(tmp_path).config, tokens)] == [
        True,
        False,
        False,
    ]


def test_special_tokens_inside_a_response_reach_the_rewards_where_they_are_asked_for(
    student: TokenModel, tmp_path: Path
) -> None:
    word, turn, end = (student.tokenizer(text)["input_ids"][0] for text in ("a", "<|im_start|>", "<|im_end|>"))
    sequences = Sequences(
        [prompt(9)] * 2, [Response((word, turn, word, end), False, "aa"), Response((end,), False, "")]
    )
    texts = {}
    for skip in ("true", "false"):
        config = tiny.configured(tmp_path, f"rollout.skip_special_tokens={skip}").config
        found = samples_of(1, sequences, config, student.tokens)
        texts[skip] = [(each.text, each.skipped) for each in found]
        assert [each.whole for each in found] == ["a<|im_start|>a", ""]  # for the verifier
    assert texts["true"] == [("aa", ("<|im_start|>",)), ("", ())]
    assert texts["false"] == [("a<|im_start|>a", ()), ("", ())]


def test_a_stop_string_may_be_a_special_token(student: TokenModel) -> None:
    turn = student.tokenizer("<|im_start|>")["input_ids"][0]
    model = fixed_logits(student, {turn: 0.0})
    (response,) = sample(model, [prompt(9)], replace(PLAIN, stop=("<|im_start|>",)), seed=0, microbatch=1)
    assert (response.token_ids, response.truncated) == ((turn,), False)


def test_the_turns_before_the_question_reach_the_rewards(student: TokenModel, tmp_path: Path) -> None:
    system, said = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}
    config = tiny.configured(tmp_path, "data.system_prompt=Be kind.").config
    for context, before in (((), [system | {"content": "Be kind."}]), ((system, said), [system, said])):
        asked = replace(prompt(9), problem=replace(prompt(9).problem, context=context))
        (found,) = samples_of(1, Sequences([asked], [Response((9,), False, "")]), config, student.tokens)
        assert list(found.before) == before


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


def test_an_evaluation_in_a_run_draws_what_the_command_draws(tmp_path: Path) -> None:
    """The same tokens for every sample, though the batches are others."""
    problems = tiny.assets().problems
    changes = (f"evaluation.benchmarks={{a: {problems}}}", "evaluation.at_start=true", "train.steps=1")
    evaluation = tiny.configured(tmp_path / "run", *changes).config.evaluation
    samples = records(tiny.run(tmp_path / "run", *changes) / "evaluations" / "step-000000.parquet")
    decoding = Decoding(evaluation.temperature, evaluation.top_p, evaluation.top_k, evaluation.max_tokens)
    chat = ChatSettings("{question}", None, thinking=False)
    settings = EvaluationSettings(
        evaluation.samples, decoding, evaluation.seed, chat, "transformers", "float32", batch=5
    )
    runner.evaluate("a", str(tiny.STUDENT), load_benchmarks([f"a={problems}"]), settings, tmp_path / "command")
    ours, theirs = (
        {(row["problem"], row["sample"]): row["token_ids"] for row in rows}
        for rows in (samples, records(tmp_path / "command" / "responses.parquet"))
    )
    assert ours == theirs
