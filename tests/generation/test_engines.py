"""Sampling with the model's own code: greedy, filters, and streams that do not depend on the batch."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import DataError
from nemo_uecr.generation import engines
from nemo_uecr.generation.engines import Decoding, Request, TransformersEngine, load_tokens
from nemo_uecr.generation.prompts import ChatSettings
from tests.evaluation.tiny import save_model

PROMPTS = ["What is 2 + 3?", "Name a prime above ten.", "x", "A longer question, with several words in it?"]
CHAT = ChatSettings("{question} Box it.", None, False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    save_model(folder, seed=1, scale=4.0)
    return str(folder)


@pytest.fixture(scope="module")
def engine(model: str) -> TransformersEngine:
    return TransformersEngine(model, load_tokens(model), dtype="float32", max_length=99)


def requests(model: str) -> list[Request]:
    tokens = load_tokens(model)
    return [Request(tokens.prompt(Problem("p", text, ""), CHAT), seed) for seed, text in enumerate(PROMPTS)]


def test_a_response_ends_after_the_token_that_completes_a_stop_string(model: str, engine: TransformersEngine) -> None:
    """The string is one that the response without it has in its middle, over a border between tokens."""
    tokens, greedy = load_tokens(model), Decoding(0.0, 1.0, 0, 24)
    (whole,) = engine.generate(requests(model)[:1], greedy)
    text = tokens.text(whole.token_ids)
    stop = text[7:10]
    (cut,) = engine.generate(requests(model)[:1], replace(greedy, stop=("never", stop)))
    assert not cut.truncated
    assert whole.token_ids[: len(cut.token_ids)] == cut.token_ids
    assert stop in tokens.text(cut.token_ids)
    assert stop not in tokens.text(cut.token_ids[:-1])


def test_the_prompt_is_the_non_thinking_template(model: str) -> None:
    tokens = load_tokens(model)

    def prompt(chat: ChatSettings) -> str:
        return str(tokens.tokenizer.decode(list(tokens.prompt(Problem("p", "Why?", ""), chat))))

    expected = "<|turn|>system\nBe brief.<|end|><|turn|>user\nQ: Why?<|end|><|turn|>assistant\n<|quiet|>"
    assert prompt(ChatSettings("Q: {question}", "Be brief.", False)) == expected
    assert "<|quiet|>" not in prompt(ChatSettings("{question}", None, True))


def test_a_model_that_is_not_there_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    for name in (str(tmp_path / "empty"), str(tmp_path / "absent"), "absent/tiny"):
        with pytest.raises(DataError, match=name):
            load_tokens(name)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> type[engines.VllmEngine]:
    pytest.importorskip("vllm")
    for name, value in (("ENABLE_V1_MULTIPROCESSING", "0"), ("CPU_KVCACHE_SPACE", "1")):
        monkeypatch.setenv(f"VLLM_{name}", value)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    return engines.VllmEngine


@pytest.mark.real
def test_vllm_and_transformers_write_the_same_greedy_text(
    model: str, engine: TransformersEngine, vllm: type[engines.VllmEngine]
) -> None:
    real = vllm(model, load_tokens(model), dtype="float32", max_length=256)
    greedy = Decoding(0.0, 1.0, 0, 48)
    assert engine.generate(requests(model), greedy) == real.generate(requests(model), greedy)
    # A stop string from the middle of an answer, in both: the same tokens, and finished.
    text = load_tokens(model).text(engine.generate(requests(model)[:1], greedy)[0].token_ids)
    stopped = replace(greedy, stop=(text[7:10],))
    cut = engine.generate(requests(model)[:1], stopped)
    assert real.generate(requests(model)[:1], stopped) == cut
    assert not cut[0].truncated
    # vLLM draws by its own random numbers; a seed gives the same text again, in whatever company.
    sampled = Decoding(0.8, 0.95, 20, 16)
    together = real.generate(requests(model), sampled)
    assert real.generate(requests(model)[2:3], sampled) == together[2:3]
    assert len({each.token_ids for each in together}) == len(PROMPTS)


@pytest.mark.real
def test_vllm_opens_no_pickled_weights(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vllm: type[engines.VllmEngine]
) -> None:
    """By itself it takes them where there are no others."""
    place = Path(shutil.copytree(model, tmp_path / "pickled"))
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    opened: list[object] = []
    monkeypatch.setattr(torch, "load", lambda file, **_: opened.append(file) or {})
    with pytest.raises(DataError, match="pickled"):
        vllm(str(place), load_tokens(model), dtype="float32", max_length=256)
    assert opened == []
