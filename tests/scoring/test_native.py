from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nemo_uecr.scoring import native
from nemo_uecr.scoring.records import StatisticsLayout
from nemo_uecr.scoring.reduce import reduce_with_torch
from tests.scoring.made import peaked_logits

needs_native = pytest.mark.skipif(native.kernel() is None, reason="no C compiler or no AVX2 here")


@needs_native
def test_the_code_for_processors_with_avx2_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEMO_UECR_CACHE", str(tmp_path))
    flags = tuple("-march=x86-64-v3" if flag == "-march=native" else flag for flag in native.FLAGS)
    monkeypatch.setattr(native, "FLAGS", flags)
    narrow = functools.cache(native.kernel.__wrapped__)
    monkeypatch.setattr(native, "kernel", narrow)
    logits = peaked_logits(3, 9001, 12.0, seed=1)[0].bfloat16()
    logits[1, 5000:6000] = -torch.inf
    layout = StatisticsLayout((1.0, 0.7), True)
    ours, plain = torch.zeros(layout.width, 3), torch.zeros(layout.width, 3)
    assert native.reduce_natively(logits, layout, ours)
    reduce_with_torch(logits, layout, plain)
    assert narrow() is not None
    assert list((tmp_path / "native").iterdir()), "the library was not built anew"
    torch.testing.assert_close(ours, plain, rtol=3e-6, atol=1e-6)


def library_in(environment: dict[str, str]) -> str:
    """In a fresh process: the library, or None, and a score."""
    code = (
        "import torch; from nemo_uecr.scoring import native, dense;"
        "print(native.kernel() is not None);"
        "print(float(dense.token_scores(torch.zeros(1, 4), torch.tensor([1]), temperatures=(1.0,),"
        " entropy=True).entropy))"
    )
    root = str(Path(native.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_without_a_compiler_or_switched_off_torch_takes_over() -> None:
    for environment in ({"NEMO_UECR_NATIVE": "0"}, {"PATH": "/nonexistent"}):
        # ln 4 = 1.3862943
        assert library_in(environment).split() == ["False", "1.3862943649291992"], environment
