from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.demo.tokenizer import build_tokenizer

pytest.importorskip("transformers")

QUESTION = "Start with 10: +5 *3 -4 = ?"
PROMPT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"


def rendered(**options: bool) -> str:
    messages = [{"role": "user", "content": QUESTION}]
    return build_tokenizer().apply_chat_template(messages, tokenize=False, **options)


def test_template_with_and_without_thinking() -> None:
    assert rendered(add_generation_prompt=True, enable_thinking=True) == PROMPT
    assert rendered(add_generation_prompt=True) == PROMPT
    assert rendered(add_generation_prompt=True, enable_thinking=False) == PROMPT + "<think>\n\n</think>\n\n"
    assert rendered(add_generation_prompt=False) == f"<|im_start|>user\n{QUESTION}<|im_end|>\n"


def test_a_conversation_with_a_system_message() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1"}]
    text = build_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1<|im_end|>\n"


def test_pieces() -> None:
    tokenizer = build_tokenizer()
    ids = tokenizer("47+18=65\n\\boxed{65}<|im_end|>", add_special_tokens=False)["input_ids"]
    # digits one by one, the box one token, the end of turn one token
    assert tokenizer.convert_ids_to_tokens(ids) == [
        "4", "7", "+", "1", "8", "=", "6", "5", "Ċ", "\\boxed{", "6", "5", "}", "<|im_end|>",
    ]  # fmt: skip
    prompt = tokenizer("Start with 47: +18 = ?", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(prompt) == [
        "Start", "Ġwith", "Ġ", "4", "7", ":", "Ġ+", "1", "8", "Ġ=", "Ġ?",
    ]  # fmt: skip
    assert len(tokenizer("<think>\n\n</think>\n\n", add_special_tokens=False)["input_ids"]) == 4


@pytest.mark.parametrize("text", ["Grüße  an\n\n\nalle: x² ≥ 3\t{a}", "<think>\n\n</think>\n\n", " 7 \\boxed{ 7 }"])
def test_any_text_survives_the_round_trip(text: str) -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_ends_and_padding_survive_saving(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    build_tokenizer().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert loaded.get_vocab() == build_tokenizer().get_vocab()
    messages = [{"role": "user", "content": QUESTION}]
    text = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert text == PROMPT + "<think>\n\n</think>\n\n"
