"""Scoring on one CUDA GPU: correctness against float64, then speed with events after warm-up.

    python tests/gpu/scoring_gpu.py --json scoring_gpu.json

Inputs are fresh at random each run (the seed is in the output) and outputs are allocated over poisoned memory,
so that a kernel which writes nothing cannot pass. With NEMO_RL_SOURCE set to a source tree of NeMo-RL, its
pair of functions is timed beside ours. Exit code 1 when a check fails; speeds are reported, not judged.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring.dense import score_logits, token_logp
from nemo_uecr.scoring.records import NonFiniteScoreError

VOCAB = 151_936
TIMED_TOKENS = 8192
BOUND = 5e-6
CUDA = torch.device("cuda")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def poison() -> None:
    """Fill free memory of the caching allocator with NaN, so that unwritten outputs are seen."""
    blocks = [torch.full((2**k,), float("nan"), device=CUDA) for k in range(8, 28)]
    torch.cuda.synchronize()
    del blocks


def peaked(tokens: int, vocab: int, log_z: float) -> tuple[Tensor, Tensor]:
    logits = torch.randn(tokens, vocab, device=CUDA) * 2.0
    likely = torch.randint(0, vocab, (tokens, 8), device=CUDA)
    logits.scatter_(1, likely, torch.rand(tokens, 8, device=CUDA) * 6.0 + 14.0)
    logits += log_z - torch.logsumexp(logits, 1, keepdim=True)
    other = torch.randint(0, vocab, (tokens,), device=CUDA)
    return logits, torch.where(torch.arange(tokens, device=CUDA) % 2 == 0, likely[:, 0], other)


def exact(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_p = torch.log_softmax(logits.double() / temperature, 1)
    entropy = -torch.special.xlogy(log_p.exp(), log_p.exp()).sum(1)
    return log_p.gather(1, target.unsqueeze(1)).squeeze(1), entropy


def check_logits() -> dict[str, float]:
    """Largest error of each kind of logits pass, all below the bound."""
    errors: dict[str, float] = {}
    for vocab in (VOCAB, 75_968, 37_987, 61):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for log_z in (8.0, 25.0):
                logits, target = peaked(65, vocab, log_z)
                logits = logits.to(dtype)
                poison()
                scores = score_logits(logits, target, temperatures=(1.0, 0.7), entropy=True)
                worst = 0.0
                for row, temperature in enumerate((1.0, 0.7)):
                    logp, entropy = exact(logits, target, temperature)
                    worst = max(worst, float((scores.logp[row] - logp).abs().max()))
                    if row == 0:
                        assert scores.entropy is not None
                        worst = max(worst, float((scores.entropy - entropy).abs().max()))
                errors[f"{vocab} {dtype} log Z {log_z}"] = worst
                assert worst <= BOUND, (vocab, dtype, log_z, worst)
    return errors


def check_bits_and_gradient() -> None:
    """Training and scoring agree bit for bit, whatever the batching; the gradient is right."""
    logits, target = peaked(33, VOCAB, 12.0)
    for dtype in (torch.float32, torch.bfloat16):
        for temperature in (1.0, 0.7):
            rows = logits.to(dtype)
            scores = score_logits(rows, target, temperatures=(0.7, 1.0), entropy=True)
            expected = scores.logp[(0.7, 1.0).index(temperature)]
            for start, stop in ((0, 33), (0, 1), (5, 20)):
                logp = token_logp(rows[start:stop], target[start:stop], temperature=temperature)
                assert torch.equal(logp, expected[start:stop]), "training and scoring differ in a bit"
    leaf = logits.clone().requires_grad_()
    token_logp(leaf, target, temperature=0.7).sum().backward()
    reference = logits.double().requires_grad_()
    torch.log_softmax(reference / 0.7, 1).gather(1, target.unsqueeze(1)).sum().backward()
    assert leaf.grad is not None
    assert reference.grad is not None
    assert float((leaf.grad - reference.grad).abs().max()) <= 2e-6


def check_refusals() -> None:
    """A bad value at the first, a middle and the last column is found."""
    for column in (0, VOCAB // 2, VOCAB - 1):
        for value in (float("nan"), float("inf")):
            logits, target = peaked(3, VOCAB, 12.0)
            logits[1, column] = value
            try:
                score_logits(logits, target, temperatures=(1.0,), entropy=True)
            except NonFiniteScoreError:
                continue
            raise AssertionError(f"{value} at column {column} went unseen")
    logits, target = peaked(3, VOCAB, 12.0)
    try:
        score_logits(logits, target + VOCAB, temperatures=(1.0,), entropy=True)
    except ScoreError:
        return
    raise AssertionError("a target outside the vocabulary went unseen")


def milliseconds(run: Callable[[], Any], repetitions: int = 20) -> float:
    """Median time between events, after warm-up."""
    for _ in range(5):
        run()
    times = []
    for _ in range(repetitions):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def measure() -> dict[str, float]:
    """Goal h: bandwidth of the statistics, and the pair of NeMo-RL."""
    logits, target = peaked(TIMED_TOKENS, VOCAB, 15.0)
    logits = logits.bfloat16()
    size = logits.numel() * logits.element_size()
    other = torch.empty_like(logits)
    copy = milliseconds(lambda: other.copy_(logits))
    one = milliseconds(lambda: score_logits(logits, target, temperatures=(1.0,), entropy=True))
    two = milliseconds(lambda: score_logits(logits, target, temperatures=(1.0, 0.7), entropy=True))
    found = {
        "copy_tb_s": 2 * size / copy / 1e9,
        "statistics_tb_s": size / one / 1e9,
        "statistics_over_copy_bandwidth": copy / (2 * one),
        "statistics_us_per_token": 1e3 * one / TIMED_TOKENS,
        "two_temperatures_over_one": two / one,
    }
    pair = nemo_rl_pair(logits, target)
    if pair is not None:
        found["nemo_rl_pair_over_ours"] = milliseconds(pair, repetitions=5) / one
    return found


def nemo_rl_pair(logits: Tensor, target: Tensor) -> Callable[[], Any] | None:
    """NeMo-RL's log-probability and entropy at its chunk of 1024, over a group of one; None without its source."""
    source = os.environ.get("NEMO_RL_SOURCE")
    if not source:
        return None
    sys.path.append(source)
    functions = importlib.import_module("nemo_rl.distributed.model_utils")
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29555", rank=0, world_size=1)
    group = torch.distributed.group.WORLD
    rows, targets = logits.unsqueeze(0), target.unsqueeze(0)

    @torch.no_grad()
    def run() -> None:
        functions.ChunkedDistributedLogprob.apply(rows, targets, 0, VOCAB, 1024, group, True)
        functions.ChunkedDistributedEntropy.apply(rows, 1024, group, True)

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        say("no CUDA device here")
        return 2
    seed = int.from_bytes(os.urandom(4), "little")
    torch.manual_seed(seed)
    result: dict[str, Any] = {
        "seed": seed,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
    }
    try:
        with torch.no_grad():
            result["errors"] = check_logits()
            check_refusals()
        check_bits_and_gradient()
        say("correct")
        with torch.no_grad():
            result["speed"] = measure()
    except AssertionError as error:
        result["failed"] = str(error)
    arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    say(json.dumps(result, indent=2))
    if "failed" in result:
        say(f"failed: {result['failed']}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
