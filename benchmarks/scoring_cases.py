"""What the scoring benchmark times: this package, plain torch, and other projects from their own packages.

Legend: N tokens, V vocabulary columns (of this rank's shard), H hidden.

A case is a callable without arguments that scores all tokens once and returns (log-probability, entropy), or
None where it has none. Another project's code is imported from where it is installed and is absent otherwise.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.scoring.dense import score_logits
from nemo_uecr.scoring.fused_linear import score_hidden, tile_for
from nemo_uecr.scoring.vocab_parallel import score_vocab_parallel

Outcome = tuple[Tensor, Tensor] | None
Run = Callable[[], Outcome]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LIKELY_TOKENS = 8


@dataclass(frozen=True)
class Inputs:
    """One problem; `rows` are logits, or hidden states with their `weight`."""

    rows: Tensor
    weight: Tensor | None
    target: Tensor
    first_column: int

    def first(self, tokens: int) -> Inputs:
        """The same problem with only its first tokens."""
        return Inputs(self.rows[:tokens], self.weight, self.target[:tokens], self.first_column)


def peaked_logits(tokens: int, vocab: int, log_z: float) -> tuple[Tensor, Tensor]:
    """`[N, V]` float32 logits with a few likely tokens a row and a log-partition of about `log_z`, and targets."""
    torch.manual_seed(1)
    logits = torch.randn(tokens, vocab).mul_(2.0)
    likely = torch.randint(0, vocab, (tokens, LIKELY_TOKENS))
    logits.scatter_(1, likely, torch.rand(tokens, LIKELY_TOKENS) * 6.0 + 14.0)
    for row in logits:
        row += log_z - torch.logsumexp(row, 0)
    target = torch.where(torch.arange(tokens) % 2 == 0, likely[:, 0], torch.randint(0, vocab, (tokens,)))
    return logits, target


def logits_inputs(tokens: int, vocab: int, dtype: str, log_z: float, rank: int, size: int) -> Inputs:
    """This rank's columns of one problem that all ranks share."""
    logits, target = peaked_logits(tokens, vocab, log_z)
    bounds = [vocab * r // size for r in range(size + 1)]
    shard = logits[:, bounds[rank] : bounds[rank + 1]].to(DTYPES[dtype]).contiguous()
    return Inputs(shard, None, target, bounds[rank])


def hidden_inputs(tokens: int, vocab: int, hidden: int, dtype: str) -> Inputs:
    """Hidden states and an output weight that give logits with a standard deviation of about 2.5."""
    torch.manual_seed(1)
    rows = torch.randn(tokens, hidden).to(DTYPES[dtype])
    weight = torch.empty(vocab, hidden, dtype=DTYPES[dtype])
    for block in weight.split(8192):  # type: ignore[no-untyped-call]
        block.copy_(torch.randn(block.shape) * (2.5 / hidden**0.5))
    return Inputs(rows, weight, torch.randint(0, vocab, (tokens,)), 0)


def plain(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 log-softmax, gather and entropy: the form everyone starts with."""
    log_p = torch.log_softmax(logits.float(), -1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(1, target.unsqueeze(1)).squeeze(1), entropy


def _ours_dense(x: Inputs, option: str) -> Run:
    temperatures = (1.0, 0.7) if option == "two" else (1.0,)

    def run() -> Outcome:
        scores = score_logits(x.rows, x.target, temperatures=temperatures, entropy=True)
        return scores.logp_KN[0], _present(scores.entropy_N)

    return run


def _plain_dense(x: Inputs, option: str) -> Run:
    return lambda: plain(x.rows, x.target)


def _trl_dense(x: Inputs, option: str) -> Run:
    trl = importlib.import_module("trl.trainer.utils")
    chunk = int(option)
    return lambda: (
        trl.selective_log_softmax(x.rows, x.target).float(),
        trl.entropy_from_logits(x.rows, chunk_size=chunk).float(),
    )


def _verl_dense(x: Inputs, option: str) -> Run:
    verl = importlib.import_module("verl.utils.torch_functional")
    chunk = int(option)
    return lambda: (
        verl.logprobs_from_logits_v2(x.rows, x.target).float(),
        verl.entropy_from_logits_with_chunking(x.rows, chunk_size=chunk),
    )


def _ours_sharded(x: Inputs, option: str) -> Run:
    def run() -> Outcome:
        scores = score_vocab_parallel(
            x.rows, x.target, first_column=x.first_column, group=None, temperatures=(1.0,), entropy=True
        )
        return scores.logp_KN[0], _present(scores.entropy_N)

    return run


def _nemo_rl_sharded(x: Inputs, option: str) -> Run:
    source = os.environ.get("NEMO_RL_SOURCE")
    if source and source not in sys.path:
        sys.path.append(source)
    nemo_rl = importlib.import_module("nemo_rl.distributed.model_utils")
    chunk, group = int(option), torch.distributed.group.WORLD
    end = x.first_column + x.rows.shape[1]

    def run() -> Outcome:
        logits, target = x.rows.unsqueeze(0), x.target.unsqueeze(0)
        logp = nemo_rl.ChunkedDistributedLogprob.apply(logits, target, x.first_column, end, chunk, group, True)
        negative_entropy = nemo_rl.ChunkedDistributedEntropy.apply(logits, chunk, group, True)
        return logp[0], -negative_entropy[0]

    return run


def _areal_sharded(x: Inputs, option: str) -> Run:
    areal = importlib.import_module("areal.utils.functional.vocab_parallel")
    chunk, group = int(option), torch.distributed.group.WORLD
    return lambda: areal.gather_logprobs_entropy(x.rows, x.target, tp_group=group, chunk_size=chunk)


def _ours_fused(x: Inputs, option: str) -> Run:
    def run() -> Outcome:
        scores = score_hidden(x.rows, _present(x.weight), x.target, temperatures=(1.0,), entropy=True)
        return scores.logp_KN[0], _present(scores.entropy_N)

    return run


def bare_product(x: Inputs, option: str) -> Run:
    """The matrix product alone, whole or in this package's tiles, into a buffer that is there already."""
    weight = _present(x.weight)
    tile = tile_for(x.rows, weight.shape[0], None)
    columns = tile.columns if option == "tiled" else weight.shape[0]
    buffer = torch.empty(x.rows.shape[0] * columns, dtype=x.rows.dtype)

    def run() -> Outcome:
        for part in torch.split(weight, columns):
            shape = (x.rows.shape[0], part.shape[0])
            torch.mm(x.rows, part.T, out=buffer[: shape[0] * shape[1]].view(shape))
        return None

    return run


def _plain_fused(x: Inputs, option: str) -> Run:
    return lambda: plain(x.rows @ _present(x.weight).T, x.target)


def _trl_fused(x: Inputs, option: str) -> Run:
    trl = importlib.import_module("trl.kernels")
    chunk = int(option)

    def run() -> Outcome:
        logp, entropy, *_ = trl.ChunkedLogProbFunction.apply(
            x.rows, _present(x.weight), None, x.target, 1.0, chunk, None, 1.0, ("entropy",)
        )
        return logp, entropy

    return run


def _liger_fused(x: Inputs, option: str) -> Run:
    liger = importlib.import_module("liger_kernel.ops.fused_linear_scaled_cross_entropy")
    head = liger.LigerFusedLinearScaledCrossEntropyFunction

    def run() -> Outcome:
        nll, entropy, *_ = head.apply(x.rows, _present(x.weight), x.target, 1.0, -100, 1, True)
        return -nll.float(), entropy.float()

    return run


def _verl_fused(x: Inputs, option: str) -> Run:
    verl = importlib.import_module("verl.utils.experimental.torch_functional")
    head = verl.FusedLinearForPPO(chunk_size=int(option))

    def run() -> Outcome:
        logp, entropy = head(x.rows.unsqueeze(0), _present(x.weight), x.target.unsqueeze(0), 1.0)
        return logp[0].float(), entropy[0].float()

    return run


BUILDERS: dict[str, Callable[[Inputs, str], Run]] = {
    "dense/ours": _ours_dense,
    "dense/plain": _plain_dense,
    "dense/trl": _trl_dense,
    "dense/verl": _verl_dense,
    "sharded/ours": _ours_sharded,
    "sharded/nemo_rl": _nemo_rl_sharded,
    "sharded/areal": _areal_sharded,
    "fused/ours": _ours_fused,
    "fused/product": bare_product,
    "fused/plain": _plain_fused,
    "fused/trl": _trl_fused,
    "fused/liger": _liger_fused,
    "fused/verl": _verl_fused,
}


def _present(value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError("this case needs a tensor that its inputs lack")
    return value
