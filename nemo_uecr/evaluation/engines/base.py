"""What an engine is given and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: Engine names of the command line.
ENGINES = ("transformers", "vllm")


@dataclass(frozen=True)
class Decoding:
    """How tokens are drawn: temperature 0 is greedy, ``top_p`` 1 and ``top_k`` 0 are off."""

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int


@dataclass(frozen=True)
class Request:
    """One response to generate; its seed fixes its draws whatever else is in the batch."""

    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Generation:
    """Sampled token ids, the end token included when there is one."""

    token_ids: tuple[int, ...]
    truncated: bool


class Engine(Protocol):
    """Generates responses with one model."""

    def generate(self, requests: Sequence[Request], decoding: Decoding) -> list[Generation]:
        """One generation a request, in order."""
        ...


def context_of(config: Any) -> int | None:
    """Longest sequence in tokens that a model reads, a stretched RoPE included; None where nothing says it.

    Args:
        config: the model's, as transformers loaded it.
    """
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    rope = getattr(text, "rope_parameters", None) or {}
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
    if not isinstance(factor, int | float) or not isinstance(original, int):
        return positions
    return max(positions, int(factor * original))


def until_end(token_ids: Sequence[int], end_ids: frozenset[int], limit: int) -> Generation:
    """Cut after the first end token; without one the response is truncated."""
    ends = next((place for place, token in enumerate(token_ids) if token in end_ids), None)
    kept = token_ids[:limit] if ends is None else token_ids[: ends + 1]
    return Generation(tuple(kept), truncated=ends is None)
