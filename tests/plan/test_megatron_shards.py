"""Parameters, gradients and optimizer state of every rank against megatron-core's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.plan.subjects import split, tiny_shape

pytestmark = pytest.mark.slow  # half a minute of imports and builds
CASES: list[dict[str, Any]] = [
    {"tensor": 1, "pipeline": 1, "data": 2, "tied": True, "optimizer": True},
    {"tensor": 1, "pipeline": 1, "data": 1, "tied": False, "optimizer": False},
    {"tensor": 2, "pipeline": 1, "data": 2, "tied": False, "optimizer": True},
    {"tensor": 1, "pipeline": 2, "data": 2, "tied": True, "optimizer": True},
    {"tensor": 2, "pipeline": 2, "data": 1, "tied": True, "optimizer": False},
    {"tensor": 2, "pipeline": 4, "data": 1, "tied": False, "optimizer": False},
]
#: Megatron pads each gradient buffer so that every rank's part starts at a multiple of 64 values.
BUFFER_PADDING = 4 * 64 * 48


@pytest.fixture(scope="module")
def built() -> list[Any]:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    environment = os.environ | {"PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.plan.megatron_shards", json.dumps(CASES)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("index", range(len(CASES)), ids=[str(list(case.values())[:4]) for case in CASES])
def test_every_rank_holds_what_is_planned(index: int, built: list[Any]) -> None:
    """Gradients: 4 bytes a parameter and the padding. Optimizer: 12 bytes a parameter over the data-parallel ranks.

    The plan counts 10: the precision-aware optimizer, which needs Transformer Engine and a GPU, leaves out the half of
    the float32 weights that the bfloat16 ones have.
    """
    case, ranks = CASES[index], built[index]
    model = split(tiny_shape(tied=case["tied"]), case["tensor"], case["pipeline"], case["data"])
    for rank, found in enumerate(ranks):
        stage = found["pipeline"]
        assert model.place(rank) == (found["tensor"], 0, found["data"], stage)
        assert model.parameters(stage) == found["parameters"]
        assert len(model.layers(stage)) == found["layers"]
    for stage in range(case["pipeline"]) if case["optimizer"] else ():
        group = [found for found in ranks if found["pipeline"] == stage and found["tensor"] == 0]
        assert len(group) == case["data"]
        assert sum(found["optimizer"] for found in group) == 12 * model.parameters(stage)
        assert abs(group[0]["optimizer"] - 12 * model.optimizer_bytes(stage) / 10) <= 12 * 64
        assert 0 <= group[0]["gradients"] - 4 * model.parameters(stage) <= BUFFER_PADDING
