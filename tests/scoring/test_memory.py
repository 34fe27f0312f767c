"""Transient memory, each case in a process of its own so that the peak is true."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_uecr

LIMIT_MB = 4e6 / 2**20
"""4 MB in units of 1024 * 1024 bytes, as the kernel counts."""

START = """
import ctypes, sys, torch
import torch.distributed as dist
from benchmarks.measure import MEBI, peak_resident, reset_peak
from nemo_uecr.scoring.dense import token_scores, token_logp
from nemo_uecr.scoring.records import VocabShard

def mark():
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what the first call touched must be paid for again
    return reset_peak()

torch.manual_seed(0)
kind, tokens = sys.argv[1], int(sys.argv[2])
"""

SCORING = (
    START
    + """
options = {"temperatures": (1.0, 0.7), "entropy": True}
columns = 64 if kind == "many" else 151_936
logits = torch.randn(tokens, columns)
target = torch.randint(0, 64, (tokens,))
gathered = 0
if len(sys.argv) > 3:
    rank = int(sys.argv[3])
    dist.init_process_group("gloo", init_method="file://" + sys.argv[4], rank=rank, world_size=2)
    options["shard"] = VocabShard(rank * columns, None)
    gathered = 2 * 2 * 20 * tokens
token_scores(logits[:2], torch.zeros(2, dtype=torch.long), **options)
before = mark()
scores = token_scores(logits, target, **options)
outputs = scores.logp.nbytes + scores.entropy.nbytes
print((peak_resident() - before - outputs - gathered) / MEBI)
if gathered:
    dist.destroy_process_group()
"""
)

TRAINING = (
    START
    + """
logits, target, gradient = torch.randn(tokens, 4), torch.randint(0, 4, (tokens,)), torch.ones(tokens)
logits.requires_grad_()
small = logits.detach()[:2].clone().requires_grad_()
torch.autograd.grad(token_logp(small, target[:2], temperature=0.7), small, gradient[:2])
before = mark()
logp = token_logp(logits, target, temperature=0.7)
forward = peak_resident() - before - (4 + 24) * tokens
before = mark()
torch.autograd.grad(logp, logits, gradient)
print(max(forward, peak_resident() - before - 16 * tokens) / MEBI)
"""
)

SLICE = (
    START
    + """
whole, target = torch.randn(2, tokens + 8, 151_936, dtype=torch.bfloat16), torch.randint(0, 64, (2, tokens))
mask = torch.arange(tokens) < torch.tensor([[tokens], [tokens // 2]])
whole.requires_grad_(kind == "training")
score = token_logp if kind == "training" else token_scores
score(whole[:, :2], target[:, :2], mask[:, :2])
before = mark()
kept = score(whole[:, 7:-1], target, mask)
print((peak_resident() - before) / MEBI)
"""
)
pytestmark = pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's clear_refs")


def measured(program: str, *arguments: list[str], native: str = "1") -> float:
    """The most MiB that a process reports; one process for each list of arguments."""
    root = str(Path(nemo_uecr.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "NEMO_UECR_NATIVE": native}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, *more], env=environment, stdout=subprocess.PIPE, text=True)
        for more in arguments
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return max(float(output) for output in outputs)


def test_transient_memory_of_training_is_bounded() -> None:
    """Beside the outputs and the 24 bytes a token that the backward needs."""
    assert measured(TRAINING, ["training", "1000000"]) <= LIMIT_MB


@pytest.mark.parametrize("kind", ["training", "scoring"])
def test_a_slice_of_the_batch_is_not_copied(kind: str) -> None:
    assert measured(SLICE, [kind, "64"]) <= LIMIT_MB


@pytest.mark.parametrize(
    ("kind", "tokens", "native"),
    [
        ("wide", 96, "1"),
        pytest.param("wide", 96, "0", marks=pytest.mark.slow),
        ("many", 300_000, "1"),
    ],
)
def test_transient_memory_is_bounded(kind: str, tokens: int, native: str) -> None:
    assert measured(SCORING, [kind, str(tokens)], native=native) <= LIMIT_MB


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [131_072, 300_000])
def test_transient_memory_over_two_ranks_is_bounded(tokens: int, tmp_path: Path) -> None:
    """Beside the outputs and the gathered statistics, 20 bytes a token and rank, of which gloo holds a copy."""
    ranks = [["many", str(tokens), str(rank), str(tmp_path / "meeting")] for rank in range(2)]
    assert measured(SCORING, *ranks) <= LIMIT_MB
