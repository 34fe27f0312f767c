"""A tiny Qwen3 of megatron-core over gloo gives the scores of Hugging Face, in every parallel layout."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_uecr

WORKER = Path(__file__).with_name("megatron_worker.py")
BOUND = 1e-5

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None or importlib.util.find_spec("transformers") is None,
    reason="megatron-core or transformers is not installed",
)


def run_layout(tp: int, pp: int, sp: bool) -> list[dict[str, float]]:
    """The differences that the ranks of the last pipeline stage report."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    size = tp * pp
    processes = []
    for rank in range(size):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(nemo_uecr.__file__).parents[1]), *sys.path]),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
        }
        command = [sys.executable, "-W", "ignore", str(WORKER), "--tp", str(tp), "--pp", str(pp)]
        command += ["--sp"] if sp else []
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(line) for out, _ in outputs for line in out.splitlines() if line.startswith("{")]


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "pp", "sp"), [(1, 1, False), (2, 1, False), (2, 2, True)])
def test_same_scores_as_hugging_face(tp: int, pp: int, sp: bool) -> None:
    reports = run_layout(tp, pp, sp)
    assert len(reports) == tp, "every rank of the last stage reports"
    for report in reports:
        assert set(report) == {"logits untied", "hidden untied", "logits tied", "hidden tied"}
        assert max(report.values()) <= BOUND, report
    assert all(report == reports[0] for report in reports), "tensor-parallel ranks differ"
