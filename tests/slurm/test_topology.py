"""A node's place in the cluster as the Ray resources by which NeMo-RL orders its ranks."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from nemo_uecr.slurm.topology import network_rank, nvlink_domain, topology_resources

FABRIC = """
    Fabric
        State                             : Completed
        CliqueId                          : 32766
        ClusterUUID                       : 3c5f0a7e-8b1d-4f5a-9d41-6f0f8f2b9a10
"""
BLOCKS = {"SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}


def test_a_fabric_is_named_by_its_uuid() -> None:
    assert nvlink_domain(FABRIC) == "3c5f0a7e-8b1d-4f5a-9d41-6f0f8f2b9a10"
    assert nvlink_domain("ClusterUUID : N/A") == ""
    assert nvlink_domain("ClusterUUID : 00000000-0000-0000-0000-000000000000") == ""
    assert nvlink_domain("") == ""


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 2),
        ({"SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node", "SLURM_TOPOLOGY_ADDR": "s0.s1.b"}, 2),
        (BLOCKS | {"SLURM_TOPOLOGY_ADDR": "block08.node-014"}, 8 * 10**10 + 14),
        (BLOCKS | {"SLURM_TOPOLOGY_ADDR": "east.west"}, 0),
        (BLOCKS, 0),
    ],
)
def test_a_rank_is_that_of_the_network_or_of_the_job(environment: dict[str, str], rank: int) -> None:
    assert network_rank("b", ["a", "b", "c"], environment) == rank


def test_the_resources_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n[ \"$1\" = -q ] && cat <<'END'\n{FABRIC}\nEND\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    resources = topology_resources("a", ["a", "b"], {})
    assert resources == {"nvlink_domain_3c5f0a7e-8b1d-4f5a-9d41-6f0f8f2b9a10": 1, "topo_rank": 1}
    tool.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert topology_resources("b", ["a", "b"], {}) == {"topo_rank": 2}
