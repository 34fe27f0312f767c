"""Our numbers against those of NeMo-RL's own evaluation."""

from __future__ import annotations

import os
import random
import sys

import pytest

SOURCE = os.environ.get("NEMO_RL_SOURCE")
pytestmark = [
    pytest.mark.nemo,
    pytest.mark.skipif(SOURCE is None, reason="NEMO_RL_SOURCE is not set; set it to NeMo-RL's source tree"),
]


@pytest.mark.parametrize("k", [1, 4])
def test_pass_at_k_and_avg_at_k(k: int) -> None:
    import typing

    import torch
    import typing_extensions

    if sys.version_info < (3, 12):
        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc, assignment] # pydantic asks for it
    assert SOURCE is not None
    if SOURCE not in sys.path:
        sys.path.insert(0, SOURCE)
    from nemo_rl.evals.eval import eval_pass_k

    from nemo_uecr.stats import average_at_k, pass_at_k

    rng = random.Random(5)
    rows = [[float(rng.random() < share) for _ in range(12)] for share in (0.0, 0.1, 0.3, 0.6, 1.0, 0.05, 0.9)]
    theirs = eval_pass_k(torch.tensor(rows).flatten(), 12, k) / len(rows)  # it adds up, its caller divides
    assert pass_at_k(rows, k) == pytest.approx(theirs, abs=1e-6)
    if k == 1:
        assert average_at_k(rows) == pytest.approx(theirs, abs=1e-6)
