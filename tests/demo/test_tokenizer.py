from __future__ import annotations

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
