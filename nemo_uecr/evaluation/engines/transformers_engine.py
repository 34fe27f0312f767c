"""Generation with the model's own code in transformers; every request draws from a random stream of its own.

Shape legend: B requests in a batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nemo_uecr.data.hub import only_here
from nemo_uecr.data.pretrained import load_pretrained
from nemo_uecr.errors import DataError, DependencyError
from nemo_uecr.evaluation.engines.base import Decoding, Generation, Request, until_end

if TYPE_CHECKING:
    from torch import Generator, Tensor


class TransformersEngine:
    """One Hugging Face causal language model, on the GPU when there is one."""

    def __init__(self, model: str, *, dtype: str, end_ids: frozenset[int], pad_id: int) -> None:
        """Load the model; safetensors only, no remote code."""
        try:
            import torch
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging as transformers_logging
        except ImportError as missing:
            raise DependencyError("evaluating needs transformers; pip install 'nemo-uecr[local]'") from missing
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        try:
            module, report = load_pretrained(
                AutoModelForCausalLM, model, local_files_only=only_here(model),
                dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True,
            )  # fmt: skip
        except DataError:
            raise
        except (OSError, ValueError) as error:
            raise DataError(f"model {model!r} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
        if report["missing_keys"]:
            raise DataError(f"model {model!r} lacks weights ({min(report['missing_keys'])}, ...); expected all of them")
        self._module: Any = module.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self._end_ids, self._pad = end_ids, pad_id

    def generate(self, requests: Sequence[Request], decoding: Decoding) -> list[Generation]:
        """One generation a request, in order."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList

        width = max(len(request.prompt_ids) for request in requests)
        ids_BT = torch.full((len(requests), width), self._pad, dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for row, request in enumerate(requests):
            ids_BT[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask_BT[row, width - len(request.prompt_ids) :] = 1
        processors = LogitsProcessorList()
        if decoding.temperature > 0:
            processors.append(SeededChoice([request.seed for request in requests], decoding))
        # A checkpoint's own sampling defaults must not fill what is left open here.
        self._module.generation_config = config = GenerationConfig(
            max_new_tokens=decoding.max_tokens,
            do_sample=False,
            eos_token_id=sorted(self._end_ids) or None,
            pad_token_id=self._pad,
        )
        device = self._module.device
        with torch.inference_mode():
            out_BT = self._module.generate(
                inputs=ids_BT.to(device),
                attention_mask=mask_BT.to(device),
                generation_config=config,
                logits_processor=processors,
            )
        rows = out_BT[:, width:].tolist()
        return [until_end(row, self._end_ids, decoding.max_tokens) for row in rows]


class SeededChoice:
    """Chooses each row's token by the row's own random stream and leaves only that token possible.

    The token is the first whose cumulative probability exceeds u ~ U(0, 1), over the tokens of the temperature-scaled
    distribution that survive top-k and then top-p, most probable first.
    """

    def __init__(self, seeds: Sequence[int], decoding: Decoding) -> None:
        """One stream a seed."""
        import torch

        self._streams: list[Generator] = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._decoding = decoding

    def __call__(self, _: Tensor, scores_BV: Tensor) -> Tensor:
        """[B, V] minus infinity except at the chosen tokens."""
        import torch

        probabilities_BV, order_BV = filtered(scores_BV, self._decoding)
        draws_B1 = torch.cat([torch.rand(1, 1, generator=stream) for stream in self._streams]).to(scores_BV.device)
        cumulative_BV = probabilities_BV.cumsum(dim=-1)
        # The last survivor closes the interval, whatever rounding did to the sum.
        place_B1 = (cumulative_BV <= draws_B1 * cumulative_BV[:, -1:]).sum(dim=-1, keepdim=True)
        last_B1 = (probabilities_BV > 0).sum(dim=-1, keepdim=True) - 1
        chosen_B1 = order_BV.gather(-1, torch.minimum(place_B1, last_B1))
        return torch.full_like(scores_BV, float("-inf")).scatter(-1, chosen_B1, 0.0)


def filtered(scores_BV: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
    """Probabilities after temperature, top-k and top-p, most probable first, and the token ids in that order.

    Args:
        scores_BV: raw logits.
        decoding: temperature > 0; top_k 0 and top_p 1 are off.

    Returns:
        [B, V] float64 probabilities, 0 where filtered out, not renormalised; [B, V] token ids.
    """
    import torch

    sorted_BV, order_BV = torch.sort(scores_BV.double() / decoding.temperature, dim=-1, descending=True, stable=True)
    if 0 < decoding.top_k < sorted_BV.shape[-1]:
        sorted_BV[:, decoding.top_k :] = float("-inf")
    probabilities_BV = sorted_BV.softmax(dim=-1)
    before_BV = probabilities_BV.cumsum(dim=-1) - probabilities_BV
    # A token stays while what lies before it has not reached the mass; the most probable one always stays.
    return probabilities_BV.masked_fill(before_BV >= decoding.top_p, 0.0), order_BV
