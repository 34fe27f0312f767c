"""The parts of a job's nodes that need neither Slurm nor Ray."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.errors import ConfigError, DataError, RunFolderError
from nemo_uecr.slurm.node import Failed, Job, _run_head, check_inputs, command_words, ray_arguments, run_driver
from nemo_uecr.slurm.replicas import Replica, largest_difference
from nemo_uecr.stopping import RunStopped, StopRequest
from tests.config.shipped import CONFIGS, DEMO

NEMO, LOCAL = str(CONFIGS / "uecr_qwen3_4b.yaml"), str(DEMO)
GIVEN = ["uecr.teacher.model_name=t", "uecr.data.subset=8"]


def job(folder: Path, node: str, *nodes: str) -> Job:
    return Job(folder, node, nodes, gpus=8, cpus=2, port=9900, register_s=1, heartbeat_s=60, silence_s=3)


def test_the_first_cause_stays_and_is_one_line(tmp_path: Path) -> None:
    this = job(tmp_path, "n1", "n1", "n2")
    assert this.read("cause") is None
    this.blame("n2", "its Ray worker\nhas died")
    this.blame("n1", "the driver ended")
    assert this.read("cause") == "node n2: its Ray worker has died"
    assert [path.name for path in tmp_path.iterdir()] == ["cause"]


def test_missing_problems_are_found_before_ray_starts(tmp_path: Path) -> None:
    """With the job's resources: eight of sixteen GPUs for the teacher, none of eight."""
    given = [*GIVEN, "uecr.teacher.dedicated_gpus=8", f"uecr.data.train={tmp_path / 'none.jsonl'}"]
    words = command_words(NEMO, given, smoke=False, nodes=2, gpus=8)
    with pytest.raises(DataError, match=r"data\.train"):
        check_inputs(words)
    check_inputs(["train", LOCAL, "--resume"])


def test_the_command_of_a_nemo_rl_run_has_slurm_s_resources() -> None:
    words = command_words(NEMO, GIVEN, smoke=False, nodes=4, gpus=7)
    assert words == ["train", NEMO, "cluster.num_nodes=4", "cluster.gpus_per_node=7", *GIVEN]
    for wrong in ("cluster.num_nodes=2", "cluster.gpus_per_node=9"):
        with pytest.raises(ConfigError, match=wrong):
            command_words(NEMO, [*GIVEN, wrong], smoke=False, nodes=4, gpus=7)


def test_what_a_container_would_lose_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run folder, and NeMo-RL's conversions, which would be made again on each node and in every attempt."""
    monkeypatch.setenv("UECR_JOB_MOUNTS", f"/somewhere:{Path.cwd()}:ro,/data")
    monkeypatch.setenv("HF_HOME", "/data/hf")
    for config, nodes, smoke in ((NEMO, 2, False), (LOCAL, 1, False), (LOCAL, 2, True)):
        key = "uecr.folder" if config is NEMO else "run.folder"
        given = [*(GIVEN if config is NEMO else ()), f"{key}=/scratch/me/run"]
        with pytest.raises(RunFolderError, match=rf"{key}=/scratch/me/run is .* --mounts /scratch/me:/scratch/me"):
            command_words(config, given, smoke=smoke, nodes=nodes, gpus=8)
    assert command_words(NEMO, GIVEN, smoke=False, nodes=2, gpus=8)
    monkeypatch.delenv("HF_HOME")
    with pytest.raises(RunFolderError, match=r"huggingface/nemo_rl is outside the container's mounts: set HF_HOME or"):
        command_words(NEMO, GIVEN, smoke=False, nodes=2, gpus=8)
    made = ["++checkpointing.pretrained_checkpoint.path=s", "uecr.teacher.megatron_checkpoint=t"]
    assert command_words(NEMO, [*GIVEN, *made], smoke=False, nodes=2, gpus=8)


@pytest.mark.parametrize(
    ("node", "words", "cause"),
    [
        ("n1", [LOCAL], f"{LOCAL}: backend local runs on one node, the job has 2; sbatch --nodes=1"),
        (
            "n1",
            ["--smoke", NEMO],
            f"{NEMO} is a recipe of NeMo-RL's; --smoke needs --config examples/configs/local/demo.yaml",
        ),
        (
            "n1",
            ["--smoke", LOCAL, "train.step=3"],
            "unknown key train.step (set on the command line); the nearest known key is train.steps",
        ),
        ("n2", ["--smoke", LOCAL], "ray is not installed; run: pip install 'nemo-uecr[ray]'"),
    ],
)
def test_a_node_that_cannot_begin_states_the_cause(
    node: str, words: list[str], cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", node)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setitem(sys.modules, "ray", None)  # what Python itself takes for not installed
    limits = ["--register-s", "1", "--heartbeat-s", "1", "--silence-s", "1", "--port", "9900", "--cpus", "1"]
    words = ["--job", str(tmp_path), "--nodes", "n1,n2", "--gpus", "0", *limits, *words]
    assert entry_point(["slurm", "node", *words]) == 2
    assert (tmp_path / "cause").read_text() == f"node {node}: {cause}\n"
    assert (tmp_path / "ended").read_text() == "2"


@pytest.mark.parametrize("count", [2, 8, 40])
def test_worker_ports_stay_in_the_range_and_neighbours_apart(tmp_path: Path, count: int) -> None:
    names = tuple(f"n{number}" for number in range(count))
    ranges = []
    for name in names:
        words = dict(word.partition("=")[::2] for word in ray_arguments(job(tmp_path, name, *names), "h:1"))
        ranges.append((int(words["--min-worker-port"]), int(words["--max-worker-port"])))
    assert all(10002 <= low < high <= 11000 for low, high in ranges)  # NeMo-RL's plan: vLLM from 11001
    if count <= 8:
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))


def test_a_head_that_nobody_can_reach_states_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own name leads nowhere, and Slurm names no address."""
    monkeypatch.setattr(socket, "gethostbyname", Mock(side_effect=socket.gaierror(-2, "unknown")))
    monkeypatch.delenv("SLURM_LAUNCH_NODE_IPADDR", raising=False)
    assert _run_head(job(tmp_path, "n1", "n1", "n2"), []) == 1
    host = re.escape(socket.gethostname())
    cause = (tmp_path / "cause").read_text()
    assert re.match(rf"node n1: the name {host} .* does not resolve .*/etc/hosts .*NCCL_SOCKET_IFNAME=NAME", cause)
    assert (tmp_path / "ended").read_text() == "1"


def test_ray_uses_the_interface_of_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # which it would set
    assert "--node-ip-address=127.0.0.1" in ray_arguments(job(tmp_path, "n2", "n1", "n2"), "h:9900")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^lo")
    assert not [word for word in ray_arguments(job(tmp_path, "n2", "n1", "n2"), "h:9900") if "node-ip" in word]


# --- the driver ---

READS_SIGNAL = """
import signal, sys, time
time.sleep(1)  # a signal that comes now is lost, and must not kill
signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(75))
print("ready")
time.sleep(60)
"""
SILENT = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"


@pytest.fixture
def ray() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def test_a_signal_too_early_is_sent_again(
    tmp_path: Path,
    ray: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setattr("nemo_uecr.slurm.node.SIGNAL_AGAIN_S", 0.1)
    this = job(tmp_path, "n1", "n1")
    this.write("stop", "")
    assert run_driver(this, ray, "", [sys.executable, "-c", READS_SIGNAL]) == 75
    assert capfdbinary.readouterr().out == this.driver_log.read_bytes() == b"ready\n"


def test_a_driver_that_hangs_is_ended_with_its_children(tmp_path: Path, ray: subprocess.Popen[bytes]) -> None:
    this = job(tmp_path, "n1", "n1")
    with pytest.raises(Failed) as failed:
        run_driver(this, ray, "", [sys.executable, "-c", SILENT])
    assert failed.value.args == ("n1", "the driver has printed nothing for 3 s: it hangs")
    child = int(this.driver_log.read_text())
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != "zombie":
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- replicas ---


def test_a_finished_test_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    words = ["train.steps=2", f"run.folder={tmp_path}"]
    run_folder(tmp_path / "n1", {"step": 1}, {"step": 2})
    with pytest.raises(ConfigError, match=f"run.folder={tmp_path}"):
        command_words(LOCAL, words, smoke=True, nodes=2, gpus=0)
    run_folder(tmp_path / "n2", {"step": 1})
    assert command_words(LOCAL, words, smoke=True, nodes=2, gpus=0) == ["slurm", "smoke", LOCAL, *words]


def run_folder(path: Path, *records: dict[str, float]) -> Path:
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_difference_is_relative_and_ignores_what_is_measured(tmp_path: Path) -> None:
    one = run_folder(tmp_path / "a", {"step": 1, "loss": 200.0, "time/step_s": 1.0})
    same = run_folder(tmp_path / "b", {"step": 1, "loss": 200.0, "time/step_s": 9.0})
    other = run_folder(tmp_path / "c", {"step": 1, "loss": 201.0, "time/step_s": 1.0})
    assert largest_difference([one, same]) == largest_difference([one]) == 0.0
    assert largest_difference([one, same, other]) == pytest.approx(1 / 200)  # |200 - 201| / 200
    assert largest_difference([one, run_folder(tmp_path / "d")]) == float("inf")


def test_a_replica_brings_errors_back_as_one_line(tmp_path: Path) -> None:
    def refuse(folder: Path, stop: StopRequest) -> Path:
        raise DataError("no such file")

    def stopped(folder: Path, stop: StopRequest) -> Path:
        raise RunStopped(f"stopped by {stop.reason}")

    assert Replica().train(refuse, tmp_path) == ("failed", "no such file")
    asked = Replica()
    asked.ask("a test")
    assert asked.train(stopped, tmp_path) == ("stopped", "stopped by a test")
    assert Replica().train(lambda folder, stop: folder, tmp_path) == ("done", str(tmp_path))
