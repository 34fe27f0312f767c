"""A tiny Qwen3 with a byte-level tokenizer and a chat template, saved as an ordinary model folder."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% if not enable_thinking %}<|quiet|>{% endif %}{% endif %}"
)


def save_tokenizer(folder: Path) -> int:
    """Write the tokenizer and return its size."""
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
    return len(fast)


def save_model(folder: Path, *, seed: int, scale: float = 1.0) -> None:
    """Write a model with random weights; a larger scale makes its choices sharper."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    size = save_tokenizer(folder)
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        eos_token_id=257,
        pad_token_id=256,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(scale)
    model.save_pretrained(folder)
