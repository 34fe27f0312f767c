"""Ports, limits, GPUs, memory and the container, each made wrong for real."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.cli.look import sizes
from nemo_uecr.doctor import devices, machine
from tests.conftest import ROOT
from tests.doctor.subjects import local, nemo

MEMINFO = Path("/proc/meminfo")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_taken_port_is_a_fail(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = machine.port_finding(taken)
    assert found.status == "fail"
    assert str(taken) in found.message


def test_a_port_is_free_again_when_its_holder_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
    assert machine.port_finding(port).status == "ok"


def test_a_port_that_is_taken_on_ipv6_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    try:
        server = socket.create_server(("::", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        assert machine.port_finding(server.getsockname()[1]).status == "fail"


def test_a_running_cluster_needs_no_port(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "node1:9900")
    assert machine.port_finding(taken).status == "ok"


def test_a_range_without_a_free_port_is_a_fail(taken: int) -> None:
    (found,) = machine.range_finding([("vLLM", taken, taken)])
    assert (found.status, found.message) == ("fail", f"{taken}-{taken}: 1 of 1 are taken")


def test_the_ranges_are_those_that_are_handed_out() -> None:
    from nemo_uecr.nemo_adapter.translate import master_config

    config = nemo().nemo
    assert config is not None
    native: dict[str, Any] = master_config(config, prompt_file="p")
    generation, cluster = native["policy"]["generation"], native["cluster"]
    assert (
        ("vLLM", generation["port_range_low"], generation["port_range_high"]),
        ("torch.distributed", cluster["master_port_range_low"], cluster["master_port_range_high"]),
    ) == machine.RANGES


def test_few_open_files_are_a_warning() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        found = machine.files_finding()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (found.status, found.message) == ("warn", f"256, Ray asks for {machine.OPEN_FILES}")


def test_names_that_lead_nowhere() -> None:
    assert machine.name_finding("no-such-host.invalid", nodes=1).status == "fail"
    assert machine.name_finding("localhost", nodes=1).status == "ok"
    assert "other nodes cannot reach" in machine.name_finding("localhost", nodes=2).message


def test_no_shared_memory_is_a_fail(tmp_path: Path) -> None:
    assert machine.shared_memory_finding(tmp_path / "absent").status == "fail"


TMPFS = 'mount -t tmpfs -o size={size} none "$1" && shift && exec "$@"'


def in_tmpfs(size: str, folder: Path, code: str) -> str:
    """What a piece of Python prints while `folder` is a real tmpfs of that size, in a mount namespace of its own."""
    command = ["unshare", "-rm", "sh", "-c", TMPFS.format(size=size), "sh", str(folder), sys.executable, "-c", code]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if done.returncode and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_little_shared_memory_is_a_warning(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from nemo_uecr.doctor.machine import shared_memory_finding as f; "
        f"print(f(Path({str(tmp_path)!r})).status)"
    )
    assert in_tmpfs("64m", tmp_path, code).strip() == "warn"


def test_a_full_file_system_is_a_fail(tmp_path: Path) -> None:
    code = f"from nemo_uecr.doctor.storage import writable_finding as f; print(f({str(tmp_path / 'run')!r}))"
    printed = in_tmpfs("64k", tmp_path, code)
    assert "status='fail'" in printed
    assert "No space left on device" in printed


def test_more_gpus_than_there_are() -> None:
    found = devices.cuda_finding(nemo(gpus_per_node=1000))
    assert found.status == "fail"
    assert "asks for 1000 on each node" in found.message
    assert devices.cuda_finding(local()).status == "ok"


def test_nccl_is_missing_from_a_cpu_build() -> None:
    import torch.distributed as dist

    assert devices.nccl_finding().status == ("ok" if dist.is_nccl_available() else "fail")


def test_the_container_is_known_by_its_folders(tmp_path: Path) -> None:
    assert "no container" in devices.container_finding(root=tmp_path).message
    (tmp_path / ".dockerenv").touch()
    assert "another container" in devices.container_finding(root=tmp_path).message
    for mark in devices.MARKS:
        (tmp_path / mark).mkdir(parents=True)
    assert devices.container_finding(root=tmp_path).status == "ok"


def test_host_memory_is_compared_with_the_plan(tmp_path: Path) -> None:
    """The 4B run puts 347 GiB into host memory: no machine with 64 GiB holds it."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       67108864 kB\nMemFree: 1 kB\n")
    found = devices.host_memory_finding(nemo(), meminfo=meminfo, sizes=sizes)
    assert (found.status, found.message) == ("fail", "64.0 GiB, the run needs 347.5")
    assert devices.host_memory_finding(local(), meminfo=MEMINFO, sizes=sizes).status == "ok"
    unknown = nemo("student.model_name=nobody/knows")
    assert devices.host_memory_finding(unknown, meminfo=MEMINFO, sizes=sizes).status == "warn"


def test_the_plan_is_held_against_these_gpus() -> None:
    """Rollout takes 87.9 GiB of each GPU at the shipped share; 40 GiB are too few for training, 141 are enough."""
    (fits,) = devices.plan_findings(nemo(), memory=139 * 2**30)
    assert (fits.status, fits.message.rpartition(": ")[2]) == ("ok", "rollout takes the most, 87.9 GiB")
    (small,) = devices.plan_findings(nemo(), memory=40 * 2**30)
    assert small.status == "fail"
    assert "train needs 53.1 GiB" in small.message
    (cut,) = devices.plan_findings(nemo("student.parallel.tensor=3", "cluster.gpus_per_node=6"), memory=None)
    assert "student.parallel.tensor: got 3" in cut.message
    assert devices.plan_findings(nemo("student.model_name=nobody/knows"), memory=None) == []
    assert devices.plan_findings(local(), memory=None) == []


def test_a_missing_package_is_a_line_and_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_uecr.doctor import packages
    from nemo_uecr.doctor.run import examine

    monkeypatch.setattr(packages, "PLAIN", ())
    monkeypatch.setitem(sys.modules, "transformers", None)  # what Python itself takes for not installed
    subject = local(student=str(tmp_path), teacher=None)
    found = {one.check: one for one in examine(subject, ray_port=9900, sizes=sizes)}
    assert found["tokenizers"].status == "fail"
    assert "transformers cannot be imported" in found["tokenizers"].message
    assert "student vocabulary" in found


def test_a_check_that_cannot_be_made_is_a_line_and_the_others_go_on(tmp_path: Path) -> None:
    """A home that nobody has and a name of 300 characters, in each place that a configuration names."""
    from nemo_uecr.doctor.run import _folders, _models

    for name in ("~nosuchuser/x", "x" * 300):
        subject = nemo(
            "cluster.nodes=2", student=name, teacher=name, run_folder=name, train_file=name,
            megatron_checkpoints=(("student.megatron_checkpoint", name),),
        )  # fmt: skip
        found = {one.check: one for one in (*_folders(subject, sizes), *_models(subject, sizes))}
        assert {"run folder", "problems", "student model", "teacher model", "vocabulary"} <= found.keys() | {
            "vocabulary"
        }
        for check in ("run folder", "problems", "student model", "student.megatron_checkpoint"):
            assert found[check].status == "fail", (name, found[check])
