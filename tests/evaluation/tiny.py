"""A tiny Qwen3 with a byte-level tokenizer and a chat template, saved as an ordinary model folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% if not enable_thinking %}<|quiet|>{% endif %}{% endif %}"
)


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Write the tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: place for place, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|pad|>", "<|end|>", "<|turn|>", "<|quiet|>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>", chat_template=TEMPLATE
    )
    fast.save_pretrained(folder)
    return fast


def save_model(folder: Path, *, seed: int, scale: float = 1.0) -> None:
    """Write a model with random weights; a larger scale makes its choices sharper."""
    from tests.local import tiny

    tokenizer = save_tokenizer(folder)
    model = tiny.new_model(tokenizer, seed=seed, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=False)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(scale)
    model.save_pretrained(folder)
