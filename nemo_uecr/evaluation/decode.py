"""The decode loop of every Hugging Face causal model: rollouts and evaluation draw their tokens here.

Shape legend: P = different prompts, B = responses still growing, S = tokens so far (prompts are padded on the left),
T = response tokens, V = vocabulary, K = candidates, most probable first.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.engines import Decoding, Tokens

#: Stands for a token that could not be drawn, because the logits were not finite.
NOT_FINITE = -1
#: Types of models that take a cache but keep no keys and values in it, or state beside it.
OTHER_STATE = {"falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "xlstm"}


@torch.inference_mode()
def decode(
    module: Any, tokens: Tokens, prompts: Sequence[tuple[int, ...]], seeds: Sequence[int], decoding: Decoding
) -> list[list[int]]:
    """One response for each prompt, up to where it is finished or has ``decoding.max_tokens``.

    Every response has a random stream of its own: what else is in the batch plays no part but for rounding. Equal
    prompts are read once. Returns token ids with the end token; the last is `NOT_FINITE` where the logits were not.
    """
    device, different = module.device, list(dict.fromkeys(prompts))
    width = max(len(prompt) for prompt in different)
    ids_PS = torch.zeros(len(different), width, dtype=torch.long)
    mask_PS = torch.ones(len(different), width + decoding.max_tokens, dtype=torch.long)
    for row, prompt in enumerate(different):
        ids_PS[row, width - len(prompt) :] = torch.tensor(prompt)
        mask_PS[row, : width - len(prompt)] = 0
    place_PS = (mask_PS.cumsum(dim=1) - 1).clamp(min=0)
    accepted = inspect.signature(module.forward).parameters
    # Its name since transformers 5.24, and before.
    key = next((name for name in ("cache", "past_key_values") if name in accepted), None)
    if key is None or module.config.model_type in OTHER_STATE:
        raise DataError(f"models of type {module.config.model_type!r} have no key-value cache; expected one that has")
    cache = DynamicCache(config=module.config)
    options = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def next_logits(ids: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        own = options | ({"position_ids": places.to(device)} if "position_ids" in accepted else {})
        out = module(ids.to(device), attention_mask=mask.to(device), use_cache=True, **{key: cache}, **own)
        logits_BV: Tensor = out.logits[:, -1]
        return logits_BV

    logits_PV = next_logits(ids_PS, mask_PS[:, :width], place_PS[:, :width])
    number = {prompt: row for row, prompt in enumerate(different)}
    rows_B = torch.tensor([number[prompt] for prompt in prompts])
    cache.reorder_cache(rows_B.to(device))
    logits_BV, mask_BS, place_BS = logits_PV[rows_B.to(device)], mask_PS[rows_B], place_PS[rows_B]
    uniform_BT = torch.stack(
        [torch.rand(decoding.max_tokens, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    )
    responses: list[list[int]] = [[] for _ in prompts]
    growing = responses
    for length in range(width, width + decoding.max_tokens):
        chosen_B = choose(logits_BV, decoding, uniform_BT[:, length - width].to(device)).cpu()
        for response, token in zip(growing, chosen_B.tolist(), strict=True):
            response.append(token)
        going = [
            row for row, ids in enumerate(growing) if ids[-1] != NOT_FINITE and not tokens.finished(ids, decoding.stop)
        ]
        if not going or length + 1 == width + decoding.max_tokens:
            break
        if len(going) < len(growing):
            growing, rows_B = [growing[row] for row in going], torch.tensor(going)
            cache.reorder_cache(rows_B.to(device))
            chosen_B, mask_BS, place_BS = chosen_B[rows_B], mask_BS[rows_B], place_BS[rows_B]
            uniform_BT = uniform_BT[rows_B]
        logits_BV = next_logits(chosen_B.unsqueeze(1), mask_BS[:, : length + 1], place_BS[:, length : length + 1])
    return responses


def choose(logits_BV: Tensor, decoding: Decoding, uniform_B: Tensor) -> Tensor:
    """The next token of each row [B], `NOT_FINITE` where its logits are NaN, +inf, or -inf throughout.

    It is the first candidate whose cumulative probability exceeds u from [0, 1), over the tokens of softmax(z / T) that
    survive top-k and then top-p. Restricting to k candidates before the softmax gives the same distribution as after
    it, and the vocabulary is not sorted.
    """
    if decoding.temperature == 0:
        top_B, chosen_B = logits_BV.max(dim=-1)
        return torch.where(top_B.isfinite(), chosen_B, NOT_FINITE)
    order_BK = None
    if decoding.top_k > 0 or decoding.top_p < 1:
        vocabulary = logits_BV.shape[-1]
        logits_BV, order_BK = logits_BV.topk(min(decoding.top_k or vocabulary, vocabulary))
    mass_BK = (logits_BV.float() / decoding.temperature).softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    # The last survivor is the first token whose cumulative probability reaches top_p; rounding takes none from top_p 1.
    most = decoding.top_p if decoding.top_p < 1 else math.inf
    last_B1 = (mass_BK < most).sum(dim=-1, keepdim=True).clamp(max=mass_BK.shape[-1] - 1)
    total_B1 = mass_BK.gather(-1, last_B1)
    chosen_B1 = (mass_BK <= uniform_B.unsqueeze(1) * total_B1).sum(dim=-1, keepdim=True)
    if order_BK is not None:
        chosen_B1 = order_BK.gather(-1, chosen_B1)
    return torch.where(total_B1.isfinite(), chosen_B1, NOT_FINITE)[:, 0]
