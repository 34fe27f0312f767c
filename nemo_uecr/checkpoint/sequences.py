"""The fixed sequences that a conversion is verified with, and their log-probabilities under either model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.data.models import ModelLoadError, load_pretrained, load_tokenizer
from nemo_uecr.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

TEXTS = (
    "What is the sum of the first ten odd numbers? Adding 1, 3, 5, ... up to 19 gives 10 squared: \\boxed{100}.",
    "def area(radius: float) -> float:\n    return 3.14159 * radius**2  # \u03c0r\u00b2, for r > 0\n",
)
RANDOM, LENGTH, SEED = 6, 48, 20
"""Sequences of random tokens, their length, and the seed."""

Sequences = list[list[int]]
Scores = list[list[float]]


def fixed_sequences(tokenizer: Path, vocabulary: int) -> Sequences:
    """Two texts in the tokenizer's tokens, and random tokens from the whole vocabulary.

    Raises:
        CheckpointError: the tokenizer cannot be read, or has tokens that the model has not.
    """
    import torch

    try:
        loaded = load_tokenizer(str(tokenizer), local_files_only=True)
    except ModelLoadError as error:
        raise CheckpointError(f"{tokenizer}: no tokenizer can be read from it ({error.reason})") from error
    texts = [loaded(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    largest = max((token for text in texts for token in text), default=0)
    if max(largest, len(loaded) - 1) >= vocabulary:
        raise CheckpointError(
            f"{tokenizer}: {len(loaded)} tokens; the model has {vocabulary}. Name the model's own: --tokenizer FOLDER"
        )
    generator = torch.Generator().manual_seed(SEED)
    drawn: Sequences = torch.randint(0, vocabulary, (RANDOM, LENGTH), generator=generator).tolist()
    return [*(text for text in texts if len(text) > 1), *drawn]


def megatron_scores(model: Any, sequences: Sequences) -> Scores:
    """Log-probabilities under megatron-core's model, one rank; in nats, from the second token on.

    Raises:
        CheckpointError: one is not a finite number.
    """
    import torch

    def logits(ids: Tensor) -> Tensor:
        width = ids.shape[1]
        positions = torch.arange(width).expand_as(ids)
        mask = torch.triu(torch.ones(1, 1, width, width, dtype=torch.bool), 1)
        found: Tensor = model(ids, positions, mask)
        return found

    return _scores(logits, sequences)


def huggingface_scores(folder: Path, sequences: Sequences) -> Scores:
    """Log-probabilities under the model that transformers loads from a folder, in float32.

    Raises:
        CheckpointError: transformers cannot load it, or loads it with tensors that the folder has not.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model, loading = load_pretrained(
            AutoModelForCausalLM, str(folder), local_files_only=True,
            dtype=torch.float32, use_safetensors=True, output_loading_info=True, attn_implementation="eager",
        )  # fmt: skip
    except ModelLoadError as error:
        raise CheckpointError(f"{folder}: transformers cannot load it ({error.reason})") from error
    odd = sorted({*loading["missing_keys"], *loading["unexpected_keys"], *map(str, loading["mismatched_keys"])})
    if odd:
        raise CheckpointError(f"{folder}: transformers finds {odd[0]} missing, unexpected or misshapen")
    model.eval()
    return _scores(lambda ids: model(input_ids=ids).logits, sequences)


def _scores(logits: Callable[[Tensor], Tensor], sequences: Sequences) -> Scores:
    import torch

    from nemo_uecr.scoring.dense import score_logits
    from nemo_uecr.scoring.errors import NonFiniteScoreError

    found: Scores = []
    with torch.no_grad():
        for sequence in sequences:
            ids = torch.tensor([sequence])
            try:
                scores = score_logits(logits(ids)[0, :-1].float(), ids[0, 1:], temperatures=(1.0,), entropy=False)
            except NonFiniteScoreError as error:
                raise CheckpointError(
                    f"the model cannot be verified: {error}. Weights that are NaN or infinite come from a run that "
                    "diverged; convert an earlier checkpoint"
                ) from error
            found.append(scores.logp_KN[0].tolist())
    return found
