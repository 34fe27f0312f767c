"""The Triton kernel in Triton's interpreter, in a process of its own: the interpreter is chosen at import."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_uecr

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]

PROGRAM = """
import json, sys, torch
from nemo_uecr.scoring.records import StatisticsLayout
from nemo_uecr.scoring.statistics import merge_shards, scores_by_chunk
from nemo_uecr.scoring.triton_kernels import reduce_with_triton

case = json.loads(sys.argv[1])
torch.manual_seed(case["vocab"])
tokens, vocab = 4, case["vocab"]
logits = torch.randn(tokens, vocab) * 2.5
logits[:, vocab // 3] += 9.0
logits[:, -1] += case["last"]
logits += case["level"] - torch.logsumexp(logits, 1, keepdim=True)
if case["masked"]:
    logits[:, : vocab // 2] = -torch.inf
logits = logits.to(getattr(torch, case["dtype"]))
target = torch.tensor([vocab - 1, vocab // 3 if not case["masked"] else vocab - 1, vocab - 1, vocab // 2])
target = target.clamp(max=vocab - 1)
layout = StatisticsLayout(tuple(case["temperatures"]), case["entropy"])
bounds = [vocab * r // case["shards"] for r in range(case["shards"] + 1)]
stats = torch.full((case["shards"], layout.width, tokens), float("nan"))
for r in range(case["shards"]):
    reduce_with_triton(logits[:, bounds[r] : bounds[r + 1]], target, layout, bounds[r], stats[r])
merged = merge_shards(stats, layout)
scores = scores_by_chunk(lambda chunk: merged, target, layout, columns=vocab, valid_vocab=None, shard=None)
errors = []
for k, temperature in enumerate(case["temperatures"]):
    exact = torch.log_softmax(logits.double() / temperature, 1).gather(1, target[:, None])[:, 0]
    errors.append(float((scores.logp[k] - exact).abs().max()))
if case["entropy"]:
    log_p = torch.log_softmax(logits.double(), 1)
    exact = -torch.special.xlogy(log_p.exp(), log_p.exp()).sum(1)
    errors.append(float((scores.entropy - exact).abs().max()))
print(max(errors))
"""

PLAIN = {
    "vocab": 151_936,
    "dtype": "float32",
    "level": 10.0,
    "last": 0.0,
    "masked": False,
    "shards": 1,
    "temperatures": [1.0],
    "entropy": True,
}
CASES = {
    "qwen3": {},
    "log Z 25 bfloat16": {"vocab": 20_011, "level": 25.0, "dtype": "bfloat16"},
    "odd shards": {"vocab": 20_011, "shards": 3, "temperatures": [1.0, 0.7]},
    "one other temperature, no entropy": {"vocab": 9001, "temperatures": [0.7], "entropy": False},
    "three temperatures": {"vocab": 9001, "temperatures": [0.5, 1.0, 2.0], "dtype": "float16"},
    "the largest comes last": {"vocab": 20_011, "last": 30.0, "temperatures": [1.0, 0.7]},
    "a masked shard": {"vocab": 20_012, "masked": True, "shards": 2, "temperatures": [1.0, 0.7]},
    "small": {"vocab": 7, "temperatures": [1.0, 0.7]},
}


@pytest.mark.parametrize("case", CASES)
def test_kernel_in_the_interpreter_against_float64(case: str) -> None:
    root = str(Path(nemo_uecr.__file__).parents[1])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([root, *sys.path])
    command = [sys.executable, "-c", PROGRAM, json.dumps(PLAIN | CASES[case])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.splitlines()[-1]) <= 5e-6
