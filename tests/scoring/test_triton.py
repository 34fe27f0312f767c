"""The Triton kernels without a GPU: in Triton's interpreter, and compiled for a Hopper GPU but not launched."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import nemo_uecr
from nemo_uecr.scoring.records import StatisticsLayout

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]


def test_kernels_in_the_interpreter() -> None:
    """In a process of its own: the interpreter is chosen at import."""
    root = Path(nemo_uecr.__file__).parents[1]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(root), *sys.path])
    files = ["tests/scoring/interpreted.py", "tests/scoring/test_dense.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


class Hopper:
    """What the compiler asks of a driver."""

    def get_current_target(self) -> Any:
        return importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What each launch would have run, by kernel: compiled in place of launched."""
    kernels = importlib.import_module("nemo_uecr.scoring.triton_kernels")
    found: dict[str, list[Any]] = {name: [] for name in ("_reduce_row", "_finish_tokens", "_write_row")}

    def compile_only(name: str) -> None:
        run = getattr(kernels, name).run
        monkeypatch.setattr(
            getattr(kernels, name),
            "run",
            lambda *values, warmup, **options: found[name].append(run(*values, warmup=True, **options)),
        )

    for name in found:
        compile_only(name)
    monkeypatch.setattr(importlib.import_module("triton.runtime").driver, "_active", Hopper())
    return found


@pytest.mark.parametrize(("vocab", "dtype"), [(8208, torch.bfloat16), (8208, torch.float32), (61, torch.float16)])
def test_a_kernel_is_compiled_once_whatever_the_number_of_tokens(
    compiled: dict[str, list[Any]], vocab: int, dtype: torch.dtype
) -> None:
    kernels = importlib.import_module("nemo_uecr.scoring.triton_kernels")
    both, alone = StatisticsLayout((1.0, 0.7), True), StatisticsLayout((0.7,), False)
    for tokens in (1, 15, 16, 220):
        logits, target = (
            torch.empty(tokens, vocab, dtype=dtype),
            torch.zeros(tokens + 1, dtype=torch.long)[tokens % 2 :],
        )
        stats, logp, entropy = torch.empty(5, tokens), torch.empty(2, tokens), torch.empty(tokens)
        kernels.reduce_with_triton(logits, target[:tokens], both, tokens % 3, stats)
        merged, _ = kernels.finish_with_triton(stats.unsqueeze(0), both, logp, entropy)
        grad = torch.ones(()).expand(tokens) if tokens % 2 else torch.ones(tokens)
        kernels.write_gradient_with_triton(logits, target[:tokens], merged, alone, grad, torch.empty_like(logits))
    assert {name: len({id(one) for one in launches}) for name, launches in compiled.items()} == dict.fromkeys(
        compiled, 1
    )
    for name in ("_reduce_row", "_write_row"):
        instructions = compiled[name][0].asm["ptx"]
        assert instructions.count("\n") < 5000  # lanes added pair by pair: 16,000, and 97 s to compile
        if vocab % 16 == 0:
            assert "ld.global.v4.b32" in instructions  # 16 bytes a load
    assert "ex2.approx.ftz.f32" in compiled["_reduce_row"][0].asm["ptx"]
