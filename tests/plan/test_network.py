"""A node's address for the others, and the exchange that the doctor measures."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from nemo_uecr.plan import network
from nemo_uecr.plan.network import own_address, take_interface
from nemo_uecr.start.machine import all_reduce
from nemo_uecr.start.seen import Caution

MEASURE = (
    "import sys, pathlib; from nemo_uecr.plan.network import exchange_rate as e; print(*e(pathlib.Path(sys.argv[1])))"
)


@pytest.fixture(autouse=True)
def _no_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # to be put back
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")


def test_a_loopback_name_is_replaced_where_others_must_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a name that leads nowhere."""
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.7")
    assert (own_address(alone=False), own_address(alone=True)) == ("192.0.2.7", "127.0.1.1")
    monkeypatch.setattr(socket, "gethostbyname", Mock(side_effect=socket.gaierror(-2, "unknown")))
    assert (own_address(alone=False), own_address(alone=True)) == ("192.0.2.7", "127.0.0.1")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "192.0.2.1")
    assert own_address(alone=False) == "192.0.2.1"


@pytest.mark.parametrize(("named", "gloo"), [("lo", "lo"), ("=lo", "lo"), ("lo,eth0", "lo"), ("^lo", None), ("", None)])
def test_gloo_uses_the_interface_of_nccl(named: str, gloo: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", named)
    assert take_interface() == (gloo and "127.0.0.1")
    assert os.environ.get("GLOO_SOCKET_IFNAME") == gloo


def test_two_tasks_measure_their_exchange(tmp_path: Path) -> None:
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "NCCL_SOCKET_IFNAME": "lo"}
    words = [sys.executable, "-c", MEASURE, str(tmp_path)]
    tasks = [
        subprocess.Popen(words, env=os.environ | step | {"SLURM_PROCID": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    for rate, backend in (task.communicate(timeout=120)[0].split() for task in tasks):
        assert backend == "gloo"
        assert 0.001 < float(rate) < 100
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rate", "backend", "adapters", "status"),
    [(9.9, "nccl", ["mlx5_0"], "warn"), (10.1, "nccl", ["mlx5_0"], "ok"), (2.0, "nccl", [], "ok"),
     (1.0, "gloo", ["mlx5_0"], "ok")],
)  # fmt: skip
def test_a_rate_below_infiniband_warns(
    rate: float, backend: str, adapters: list[str], status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in adapters:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(network, "INFINIBAND", tmp_path)
    monkeypatch.setattr(network, "exchange_rate", lambda folder: (rate, backend))
    assert all_reduce(tmp_path) is None  # of one node
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    seen = all_reduce(tmp_path)
    assert isinstance(seen, Caution) == (status == "warn")
    message = seen.message if isinstance(seen, Caution) else str(seen)
    assert message.startswith(f"{rate:.2f} GB/s")
    assert not isinstance(seen, Caution) or "NCCL_IB_HCA" in seen.remedy
