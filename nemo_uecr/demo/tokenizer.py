"""The demo's tokenizer: byte-level BPE whose digits stay single, with a Qwen-like chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
PLAIN_TOKENS = ("<think>", "</think>", "\\boxed{")
MODEL_MAX_LENGTH = 512

# Digits one by one, words and signs with the space before them, line breaks, other blanks.
PIECES = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|[\r\n]+|[^\S\r\n]+"
# What the merges are learned from: each word of the task and of the template becomes one token.
MERGE_TEXT = ("system", "user", "assistant", "\n\n", "Start with : + - * = ?")

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer: every byte is a token, so any text can be encoded, and the task's words are one each."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    bpe.train_from_iterator(MERGE_TEXT, trainer)
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MODEL_MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
