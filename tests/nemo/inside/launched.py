"""A tokenizer and benchmarks on disk, and the requests of an evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.generation.engines import Decoding, Generation, Request

CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"


def make_tokenizer(folder: Path, special: Sequence[str] = ()) -> int:
    """A tokenizer of single characters and some tokens more, with a chat template; returns its vocabulary."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", *CHARACTERS, *special]
    model = models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<pad>")
    plain = Tokenizer(model)
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    plain.decoder = decoders.Fuse()
    plain.add_special_tokens(list(special))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}="
    tokenizer.save_pretrained(folder)
    return len(names)


def text_of(ids: Iterable[int]) -> str:
    return "".join(CHARACTERS[token - 2] for token in ids)


def ids_of(text: str) -> list[int]:
    return [CHARACTERS.index(character) + 2 for character in text]


ASKED: list[tuple[list[Request], Decoding]] = []


def examined(workers: Any, requests: Sequence[Request], decoding: Decoding, *given: Any, seconds: float) -> Any:
    """Answers questions of the set `hard` in the first sample only, all others always; the rest is cut at one token."""
    ASKED.append((list(requests), decoding))
    found = []
    for place, request in enumerate(requests):
        first, second = map(int, text_of(request.prompt_ids).partition("\n")[0].split("+"))
        right = Generation((*ids_of(f"\\boxed{{{first + second}}}"), 1), truncated=False)
        found.append(right if place % 2 == 0 or second == 1 else Generation((1,), truncated=True))
    return found


def make_benchmarks(folder: Path) -> list[str]:
    """Two sets of two problems; `easy` adds 1, `hard` adds 10."""
    for name, added in (("easy", 1), ("hard", 10)):
        rows = [{"id": str(n), "question": f"{n}+{added}", "answer": str(n + added)} for n in (3, 5)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [f"evaluation.benchmarks.{name}={folder / name}.jsonl" for name in ("easy", "hard")]
