"""The doctor on machines and folders made wrong for real: ports, memory, packages, containers, disks, problems."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.cli.look import sizes
from nemo_uecr.config.nemo_schema import AnyConfig
from nemo_uecr.plan import doctor, machine
from nemo_uecr.plan.machine import Finding, Package
from nemo_uecr.plan.records import GIB
from tests.conftest import ROOT
from tests.plan.subjects import local, made, nemo


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_taken_port_is_a_fail(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.port_finding(taken).status == "fail"
    (found,) = machine.range_findings([("vLLM", taken, taken)])
    assert (found.status, found.message) == ("fail", f"{taken}-{taken}: 1 of 1 are taken")
    monkeypatch.setenv("RAY_ADDRESS", "node1:9900")
    assert machine.port_finding(taken).status == "ok"


def test_the_ranges_are_those_that_are_handed_out() -> None:
    from nemo_uecr.nemo.translate import master_config

    native: dict[str, Any] = master_config(nemo())
    generation, cluster = native["policy"]["generation"], native["cluster"]
    assert (
        ("vLLM", generation["port_range_low"], generation["port_range_high"]),
        ("torch.distributed", cluster["master_port_range_low"], cluster["master_port_range_high"]),
    ) == machine.RANGES


def test_names_that_lead_nowhere() -> None:
    assert machine.name_finding("no-such-host.invalid", nodes=1).status == "fail"
    assert machine.name_finding("localhost", nodes=1).status == "ok"
    assert machine.name_finding("localhost", nodes=2).status == "fail"


def test_the_container_is_known_by_its_folders(tmp_path: Path) -> None:
    assert machine.container_finding(root=tmp_path).status == "warn"
    for mark in machine.MARKS:
        (tmp_path / mark).mkdir(parents=True)
    assert machine.container_finding(root=tmp_path).status == "ok"


# -- packages --------------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that every new interpreter imports from."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), ROOT]))
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_which_apex_it_is(site: Path) -> None:
    """None is fine; PyPI's toolkit of the name is refused; NVIDIA's is known by its folders."""
    assert machine.apex_finding(sys.executable).status == "ok"
    write(site / "apex" / "__init__.py", "")
    found = machine.apex_finding(sys.executable)
    assert (found.status, "pip uninstall apex" in found.remedy) == ("fail", True)
    for name in machine.NVIDIA_APEX:
        write(site / "apex" / name / "__init__.py", "")
    assert machine.apex_finding(sys.executable).status == "ok"


def test_a_package_that_cannot_be_imported(site: Path) -> None:
    write(site / "broken_package" / "__init__.py", "raise OSError('libnccl.so.2: cannot open')")
    for name, reason in (("broken_package", "libnccl"), ("no_package", "No module named 'no_package'")):
        found = machine.import_finding(Package(name, name, True, "pip install it"), sys.executable)
        assert (found.status, found.remedy, reason in found.message) == ("fail", "pip install it", True)


def test_the_empty_nemo_rl_of_pypi_is_refused(site: Path) -> None:
    write(site / "nemo_rl" / "__init__.py", "__version__ = '0.0.0'")
    code = "from nemo_uecr.plan.machine import nemo_rl_finding; print(nemo_rl_finding().status)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "fail\n"


def test_a_check_that_cannot_be_made_is_a_line_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PLAIN", ())
    monkeypatch.setattr(machine, "SECONDS", 0.001)
    monkeypatch.setitem(sys.modules, "transformers", None)  # what Python itself takes for not installed
    run = local("student.model_name=a/b", "method.name=grpo", "teacher.model_name=null")
    found = {one.check: one for one in doctor.examine(run, ray_port=9900, sizes=sizes)}
    assert found["apex"].message.startswith("cannot be checked: TimeoutExpired: ")
    assert "transformers cannot be imported" in found["student tokenizer"].message
    assert found["plan"].status == "warn"


# -- the run's folders and its plan ----------------------------------------------------------------------------------


def fit(run: AnyConfig, *, gpu: int | None = None, host: int = 512) -> dict[str, Finding]:
    found = list(doctor.fit_findings(run, sizes, gpu_memory=gpu and gpu * GIB, host_memory=host * GIB))
    return {one.check: one for one in found}


def test_the_plan_is_held_against_this_machine() -> None:
    """Rollout takes 88.0 GiB of each GPU at the shipped share, training 53.2; the 4B run puts 347.5 GiB into a host."""
    found = fit(nemo(), gpu=139)
    assert (found["plan"].status, found["plan"].message.rpartition(": ")[2]) == (
        "ok",
        "rollout takes the most, 88.0 GiB",
    )
    assert found["host memory"].status == "ok"
    found = fit(nemo(), gpu=40, host=64)
    assert (found["plan"].status, "train needs 53.2 GiB" in found["plan"].message) == ("fail", True)
    assert (found["host memory"].status, found["host memory"].message) == ("fail", "64.0 GiB, the run needs 347.5")
    assert {one.status for one in fit(local()).values()} == {"ok"}
    assert fit(nemo("student.model_name=nobody/knows"))["plan"].status == "warn"
    cut = fit(nemo("student.model_name=nobody/knows", "cluster.gpus_per_node=5"))["plan"]
    assert (cut.status, "5 data-parallel ranks" in cut.message) == ("fail", True)


def test_checkpoints_that_do_not_fit_are_a_fail(tmp_path: Path) -> None:
    """4 checkpoints of 4.02 billion parameters x 14 bytes; a million of them fit nowhere."""
    folder = f"run.folder={tmp_path}"
    assert "4 checkpoints of 52.45 GiB need 209.8" in fit(nemo(folder))["disk"].message
    assert fit(nemo(folder, "checkpoint.keep_last=1000000"))["disk"].status == "fail"


def test_a_file_system_of_this_node_alone_is_a_fail() -> None:
    """/dev/shm is memory of this machine on every Linux."""
    assert list(doctor.shared_findings(nemo("run.folder=/dev/shm/run"))) == []
    found = doctor.shared_findings(nemo("cluster.nodes=2", "run.folder=/dev/shm/run"))
    assert [one.status for one in found if one.check == "shared run.folder"] == ["fail"]


@pytest.mark.parametrize(
    ("content", "status", "fault"),
    [
        (None, "fail", "no such file"),
        ('{"question": "q", "final_answer": "1"}\n', "fail", "1 problems are left to train on"),
        ('{"question": "q", "final_answer": "1"}\n' * 126, "ok", "fields 'question' and 'final_answer'"),
    ],
)
def test_problem_files(content: str | None, status: str, fault: str, tmp_path: Path) -> None:
    path, keys = tmp_path / "train.jsonl", [f"data.difficulty_{end}=null" for end in ("key", "low", "high")]
    if content is not None:
        path.write_text(content)
    run = nemo(f"data.train={path}", "evaluation.benchmarks={}", *keys)
    (found,) = made(lambda: doctor.problems_finding(run))
    assert (found.status, fault in found.message) == (status, True), found
