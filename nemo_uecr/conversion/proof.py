"""Verifies that two models are the same: compares their log-probabilities of fixed sequences token by token.

Shape suffixes: B sequences, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.errors import CheckpointError
from nemo_uecr.generation.adapter import load_causal_lm
from nemo_uecr.generation.models import load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor


TEXTS = (
    "What is the sum of the first ten odd numbers? Adding 1, 3, 5, ... up to 19 gives 10 squared: \\boxed{100}.",
    "def area(radius: float) -> float:\n    return 3.14159 * radius**2  # \u03c0r\u00b2, for r > 0\n",
)
#: Number, length and seed of the random sequences.
RANDOM, LENGTH, SEED = 6, 48, 20
#: Names of the two models in messages.
MEGATRON_HF = ("Megatron", "Hugging Face")

Sequences = list[list[int]]
Scores = list[list[float]]


@dataclass(frozen=True)
class Agreement:
    """Largest difference between two models' log-probabilities, in nats, over this many tokens."""

    largest: float
    tokens: int


def fixed_sequences(tokenizer: Path, vocabulary: int, source: Path | None = None) -> Sequences:
    """Token ids of two texts, and sequences of random tokens from the whole vocabulary; messages name the source."""
    import torch

    loaded = load_tokenizer(str(tokenizer), local_files_only=True)
    texts = [loaded(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    largest = max((token for text in texts for token in text), default=0)
    if max(largest, len(loaded) - 1) >= vocabulary:
        raise CheckpointError(
            f"{source or tokenizer}: {len(loaded)} tokens; the model has {vocabulary}. Name the model's own: "
            "--tokenizer FOLDER"
        )
    generator = torch.Generator().manual_seed(SEED)
    drawn: Sequences = torch.randint(0, vocabulary, (RANDOM, LENGTH), generator=generator).tolist()
    return [*(text for text in texts if len(text) > 1), *drawn]


def megatron_logits(model: Any, ids_BT: Tensor) -> Tensor:
    """Logits [B, T, V] of megatron-core's model on one rank."""
    import torch

    width = ids_BT.shape[1]
    future = torch.triu(torch.ones(1, 1, width, width, dtype=torch.bool), 1)
    logits: Tensor = model(ids_BT, torch.arange(width).expand_as(ids_BT), future)
    return logits


def megatron_scores(model: Any, sequences: Sequences) -> Scores:
    """Log-probabilities by megatron-core's model on one rank; in nats, from the second token on."""
    return _scores(lambda ids_BT: megatron_logits(model, ids_BT), sequences)


def huggingface_scores(folder: Path, sequences: Sequences) -> Scores:
    """Log-probabilities by the model that transformers loads from a folder, in float32."""
    import torch

    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    model, report = load_causal_lm(str(folder), local_files_only=True, **options)
    odd = sorted({*report["missing_keys"], *report["unexpected_keys"], *map(str, report["mismatched_keys"])})
    if odd:
        raise CheckpointError(f"{folder}: transformers finds {odd[0]} missing, unexpected or misshapen")
    model.eval()
    return _scores(lambda ids_BT: model(input_ids=ids_BT).logits, sequences)


def _scores(logits: Callable[[Tensor], Tensor], sequences: Sequences) -> Scores:
    import torch

    from nemo_uecr.scoring.dense import token_scores

    logps: Scores = []
    with torch.no_grad():
        for sequence in sequences:
            ids = torch.tensor([sequence])
            scores = token_scores(logits(ids)[0, :-1].float(), ids[0, 1:], temperatures=(1.0,), entropy=False)
            logps.append(scores.at(1.0).tolist())
    return logps


def compare(
    sequences: Sequences, one: Scores, other: Scores, tolerance: float, names: tuple[str, str] = MEGATRON_HF
) -> Agreement:
    """Compare two models' scores: max_t |log p_one(y_t | y_<t) - log p_other(y_t | y_<t)| <= tolerance.

    Raises:
        CheckpointError: a score is not finite, or the largest difference exceeds ``tolerance`` nats.
    """
    places = [
        (abs(left - right), row, column)
        for row, (ours, theirs) in enumerate(zip(one, other, strict=True))
        for column, (left, right) in enumerate(zip(ours, theirs, strict=True))
    ]
    worst, row, column = max(places, key=lambda place: place[0] if math.isfinite(place[0]) else math.inf)
    left, right = one[row][column], other[row][column]
    if not math.isfinite(worst):
        raise CheckpointError(f"sequence {row}, token {column + 1}: got {left} and {right}; expected numbers")
    if worst > tolerance:
        raise CheckpointError(
            f"not the same model: log-probabilities differ by {worst:.3g} nats (tolerance {tolerance:g}) at sequence "
            f"{row}, token {column + 1} ({sequences[row][column + 1]}): {names[0]} {left:.6f}, "
            f"{names[1]} {right:.6f}"
        )
    return Agreement(worst, len(places))
