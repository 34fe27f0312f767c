"""Transient memory, each case in a process of its own so that the peak is true."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_uecr

LIMIT_MB = 4.0

PROGRAM = """
import sys, torch
from nemo_uecr.scoring.dense import score_logits
from nemo_uecr.scoring.fused_linear import score_hidden

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

kind, tokens = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
options = {"temperatures": (1.0, 0.7), "entropy": True, "top1": True}
if kind == "fused":
    inputs = (torch.randn(tokens, 256).bfloat16(), torch.randn(40_000, 256).bfloat16() * 0.1)
    score, small = score_hidden, (inputs[0][:300], inputs[1][:9000])
else:
    columns = 64 if kind == "many" else 151_936
    inputs = (torch.randn(tokens, columns),)
    score, small = score_logits, (inputs[0][:2],)
score(*small, torch.zeros(small[0].shape[0], dtype=torch.long), **options)
target = torch.zeros(tokens, dtype=torch.long)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
scores = score(*inputs, target, **options)
outputs = sum(t.numel() * t.element_size() for t in (scores.logp_KN, scores.entropy_N, scores.top1_N)) / 2**20
print(status("VmHWM") - before - outputs)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's clear_refs")
@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize(("kind", "tokens"), [("wide", 96), ("many", 300_000), ("fused", 1200)])
def test_transient_memory_is_bounded(native: str, kind: str, tokens: int) -> None:
    root = str(Path(nemo_uecr.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "NEMO_UECR_NATIVE": native}
    command = [sys.executable, "-c", PROGRAM, kind, str(tokens)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) <= LIMIT_MB
