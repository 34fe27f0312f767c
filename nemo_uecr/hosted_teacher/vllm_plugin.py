"""vLLM plugin that makes a server give the entropy: in place of a prompt token's `rank` come its float32 bits.

vLLM's completions route gives the log-probability of any ids and no entropy. A server that has ``UECR_TEACHER_TOKENS``
in its environment, `all` or the number of columns that count, gives both, over these columns, at temperature 1. In any
other vLLM, such as one that samples rollouts, the plugin does nothing.

Shape legend: N = prompt tokens, V = columns of the output layer, K = best tokens beside the prompt's own.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import Tensor

#: Environment variable of the server: `all`, or how many columns count; the ids behind them are padding.
TOKENS = "UECR_TEACHER_TOKENS"
#: Rows that are reduced at once; bounds the memory beside the logits.
ROWS = 128
#: Log-probability of an id in the padding: JSON has no infinity, and an index error would end the whole engine.
IMPOSSIBLE = -1e30


def teacher_scores(logits_NV: Tensor, best: int, target_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the prompt's tokens and of the best ones, and the entropy.

    H = -sum_v p_v log p_v,  p = softmax(logits), in float32

    Args:
        logits_NV: the columns that count.
        best: K.
        target_N: the prompt's tokens.

    Returns:
        ids [N, 1 + K], log-probabilities [N, 1 + K] in nats, and the entropy's bits [N]; as vLLM lays them out.
    """
    columns, pieces = logits_NV.shape[1], []
    for rows_nV, target_n in zip(torch.split(logits_NV, ROWS), torch.split(target_N, ROWS), strict=True):
        logp_nV = rows_nV.log_softmax(-1, dtype=torch.float32)
        entropy_n = torch.special.entr(logp_nV.exp()).sum(-1)  # 0 where a logit is -inf
        target_n1 = target_n.long().unsqueeze(1)
        own_n1 = logp_nV.gather(1, target_n1.clamp(max=columns - 1)).masked_fill(target_n1 >= columns, IMPOSSIBLE)
        top = logp_nV.topk(best)
        ids_nK, logp_nK = torch.cat((target_n1, top.indices), 1), torch.cat((own_n1, top.values), 1)
        pieces.append((ids_nK.int(), logp_nK, entropy_n.view(torch.int32)))
    ids, logp, bits = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return ids, logp, bits


@functools.cache
def register() -> None:
    """Entry point of the group `vllm.general_plugins`: replace what both model runners compute for prompt tokens."""
    asked = os.environ.get(TOKENS)
    if not asked:
        return
    columns = None if asked == "all" else int(asked)
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.worker.gpu.sample import prompt_logprob
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def scores(logits_NV: Tensor, best: int, target_N: Tensor, *, logits_mode: bool = False) -> Any:
        return LogprobsTensors(*teacher_scores(logits_NV[:, :columns], best, target_N))

    stock = GPUModelRunner._get_prompt_logprobs_dict

    def prompt_logprobs(runner: Any, *arguments: Any) -> Any:
        sampler = runner.sampler  # samples as ever afterwards
        sampler.compute_logprobs, sampler.gather_logprobs = (lambda logits_NV: logits_NV), scores
        try:
            return stock(runner, *arguments)
        finally:
            del sampler.compute_logprobs, sampler.gather_logprobs

    GPUModelRunner._get_prompt_logprobs_dict = prompt_logprobs
    prompt_logprob.compute_topk_scores = scores  # Model Runner V2
