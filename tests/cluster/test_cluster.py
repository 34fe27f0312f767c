"""The parts of a job's nodes that need neither Slurm nor Ray."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.cluster.driver import Driver
from nemo_uecr.cluster.head import head_host, run_head, status_line
from nemo_uecr.cluster.job import Job, Limits
from nemo_uecr.cluster.job_folder import JobFolder
from nemo_uecr.cluster.ports import head_port
from nemo_uecr.cluster.process_group import end_group
from nemo_uecr.cluster.ray_process import answers, last_line, start_arguments
from nemo_uecr.cluster.replicas import Outcome, Replica, ReplicaError, _folders, largest_difference
from nemo_uecr.cluster.words import command_words
from nemo_uecr.cluster.worker import run_worker
from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.stopping import RunStopped, StopRequest

CONFIGS = Path(__file__).resolve().parents[2] / "examples" / "configs"
NEMO, LOCAL = str(CONFIGS / "uecr_qwen3_4b.yaml"), str(CONFIGS / "local" / "demo.yaml")


def job(folder: Path, node: str, *nodes: str) -> Job:
    return Job(node, nodes, gpus=8, cpus=2, port=9900, folder=JobFolder(folder), limits=Limits(1, 1, 1))


# --- the folder ---


def test_the_first_cause_stays_and_is_one_line(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    assert folder.cause() is None
    folder.blame("n2", "its Ray worker\nhas died")
    folder.blame("n1", "the driver ended")
    assert folder.cause() == "node n2: its Ray worker has died"
    assert [path.name for path in tmp_path.iterdir()] == ["cause"]


def test_nodes_that_blame_at_once_leave_one_whole_line(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: JobFolder(tmp_path).blame(f"n{number}", "x" * 500), range(8)))
    cause = JobFolder(tmp_path).cause()
    assert cause is not None
    assert len(cause) == len("node n1: ") + 500


def test_the_life_of_a_job(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    assert (folder.head_address(), folder.stop_asked(), folder.ended(), folder.left()) == (None, False, False, set())
    folder.publish_head("h:1")
    (tmp_path / "stop").touch()  # as the batch script does
    folder.end(75)
    folder.leave("n2")
    assert (folder.head_address(), folder.stop_asked(), folder.ended(), folder.left()) == ("h:1", True, True, {"n2"})
    assert (tmp_path / "ended").read_text() == "75"  # as the batch script reads it


# --- the command ---


def test_the_command_of_a_nemo_rl_run_has_slurm_s_resources() -> None:
    words = command_words(NEMO, ["method.name=puu"], smoke=False, nodes=4, gpus=8)
    assert words == ["train", NEMO, "method.name=puu", "cluster.nodes=4", "cluster.gpus_per_node=8", "--resume"]


def test_fewer_gpus_of_a_node_may_be_used() -> None:
    words = command_words(NEMO, ["cluster.gpus_per_node=7"], smoke=False, nodes=4, gpus=8)
    assert words == ["train", NEMO, "cluster.gpus_per_node=7", "cluster.nodes=4", "--resume"]


def test_a_local_run_and_a_smoke_run_have_no_cluster_keys() -> None:
    assert command_words(LOCAL, ["a=b"], smoke=False, nodes=1, gpus=8) == ["train", LOCAL, "a=b", "--resume"]
    assert command_words(LOCAL, ["a=b"], smoke=True, nodes=2, gpus=8) == ["cluster", "smoke", LOCAL, "a=b"]


@pytest.mark.parametrize(
    ("config", "override", "message"),
    [
        (NEMO, "cluster.nodes=2", "cluster.nodes=2: the job has 4 nodes; ask Slurm: sbatch --nodes=2"),
        (NEMO, "cluster.gpus_per_node=9", "cluster.gpus_per_node=9: each node of the job has 8 GPUs"),
        (NEMO, " cluster.nodes =2", "cluster.nodes=2: the job has 4 nodes"),
        (NEMO, "cluster={nodes: 2, gpus_per_node: 3}", "cluster.nodes=2: the job has 4 nodes"),
        (NEMO, "cluster={gpus_per_node: 9}", "cluster.gpus_per_node=9: each node of the job has 8 GPUs"),
        (NEMO, "cluster.gpus_per_node=all", "give a number from 1 to 8"),
        (LOCAL, "train.steps=1", "backend local runs on one node, the job has 4"),
    ],
)
def test_other_resources_than_the_job_s_are_refused(config: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        command_words(config, [override], smoke=False, nodes=4, gpus=8)


@pytest.mark.parametrize("port", [-1, 0, 80, 1023, 10_001, 10_999, 65_535, 70_000])
def test_ports_that_ray_refuses(port: int) -> None:
    with pytest.raises(ConfigError, match=f"--ray-port: got {port}, "):
        head_port(port)


@pytest.mark.parametrize("port", [1024, 9900, 10_000, 11_000, 65_534])
def test_ports_that_ray_takes(port: int) -> None:
    assert head_port(port) == port


class WatchedFolder(JobFolder):
    """Remembers what the other nodes and the batch script would have found when the end was announced."""

    cause_at_end: str | None = None

    def end(self, code: int) -> None:
        self.cause_at_end = self.cause()
        super().end(code)


def test_the_cause_stands_before_the_end_is_announced(tmp_path: Path) -> None:
    """Ray refuses a negative number of CPUs, or is not installed; nodes that leave at once must find the cause."""
    folder = WatchedFolder(tmp_path)
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    assert run_head(Job("n1", ("n1",), 0, -1, port, folder, Limits(1, 1, 1)), ["true"]) == 1
    assert folder.cause_at_end is not None
    assert "the Ray head has died" in folder.cause_at_end


# --- Ray's arguments ---


def test_a_node_that_slurm_forgot_leaves_when_the_script_has_ended(tmp_path: Path) -> None:
    """It waits for a head that never comes; nobody is blamed for a job that was cancelled."""
    folder = JobFolder(tmp_path)
    (tmp_path / "final").write_text("CANCELLED: ended from outside\n")
    began = time.monotonic()
    assert run_worker(Job("n2", ("n1", "n2"), 8, 2, 9900, folder, Limits(30, 1, 1))) == 1
    assert time.monotonic() - began < 10
    assert folder.cause() is None


def test_head_and_worker_arguments(tmp_path: Path) -> None:
    head, worker = (start_arguments(job(tmp_path, "n1", "n1", "n2"), None), "h:9900")
    assert {"--head", "--port=9900", "--ray-client-server-port=9901", "--num-gpus=8", "--block"} <= set(head)
    joined = start_arguments(job(tmp_path, "n2", "n1", "n2"), worker)
    assert "--address=h:9900" in joined
    assert "--head" not in joined
    assert '--resources={"slurm_node:n2": 1}' in joined


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 40])
def test_worker_ports_stay_in_the_range_and_neighbours_apart(tmp_path: Path, count: int) -> None:
    names = tuple(f"n{number}" for number in range(count))
    ranges = []
    for name in names:
        words = dict(
            word.lstrip("-").split("=", 1)
            for word in start_arguments(job(tmp_path, name, *names), "h:1")
            if "=" in word
        )
        ranges.append((int(words["min-worker-port"]), int(words["max-worker-port"])))
    assert all(10002 <= low < high <= 11000 for low, high in ranges)  # NeMo-RL's plan: vLLM from 11001
    if count <= 8:
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))


def test_status_counts_nodes_and_gpus(tmp_path: Path) -> None:
    two = job(tmp_path, "n1", "n1", "n2")
    assert status_line(two, {}) == "0 of 2 nodes, 0 of 16 GPUs"
    # A stranger in the cluster is not counted, and no node counts for more than it should have.
    assert status_line(two, {"n1": 12, "other": 8}) == "1 of 2 nodes, 8 of 16 GPUs"


def test_a_loopback_name_is_replaced_where_others_must_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.7")
    assert head_host(alone=False) == "192.0.2.7"
    assert head_host(alone=True) == "127.0.1.1"
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "192.0.2.1")
    assert head_host(alone=False) == "192.0.2.1"


def test_whether_a_port_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert answers(f"127.0.0.1:{port}")
    assert not answers(f"127.0.0.1:{port}")


def test_last_line(tmp_path: Path) -> None:
    assert last_line(tmp_path / "absent") == "no output"
    (tmp_path / "log").write_text("x\n" * 9000 + "the cause\n\n  \n")
    assert last_line(tmp_path / "log") == "the cause"


# --- the driver ---

READS_SIGNAL = """
import signal, sys, time
time.sleep(0.5)  # a signal that comes now is lost, and must not kill
signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(75))
print("ready")
time.sleep(60)
"""


def test_the_driver_s_output_is_kept_and_passed_on(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = tmp_path / "driver.log"
    driver = Driver([sys.executable, "-c", "import os; print(os.environ['A']); raise SystemExit(3)"], log, {"A": "one"})
    wait_for(lambda: driver.code() is not None)
    assert driver.stop() == 3
    assert log.read_text() == "one\n"
    assert capfdbinary.readouterr().out == b"one\n"


def test_a_signal_too_early_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_uecr.cluster.driver.AGAIN_S", 0.1)
    driver = Driver([sys.executable, "-c", READS_SIGNAL], tmp_path / "log", {})
    deadline = time.monotonic() + 30
    while driver.code() is None and time.monotonic() < deadline:
        driver.ask_to_save()
        time.sleep(0.05)
    assert driver.stop() == 75


def test_stopping_ends_the_driver_s_children_too(tmp_path: Path) -> None:
    parent = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    driver = Driver([sys.executable, "-c", parent], tmp_path / "log", {})
    wait_for(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text().endswith("\n"))
    child = int((tmp_path / "log").read_text())
    assert driver.silent_s() < 30
    assert driver.stop() == -signal.SIGTERM
    wait_for(lambda: not running(child))


def test_a_signal_in_the_wait_for_a_group_leaves_nothing_of_it() -> None:
    """The end of a job reaches its node while that waits for Ray to end."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = signal.signal(signal.SIGALRM, lambda number, frame: sys.exit(143))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(SystemExit):
                end_group(process, 30)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert process.wait(10) == -signal.SIGKILL


def running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(true: object) -> None:
    assert callable(true)
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- replicas ---


def run_folder(path: Path, *records: dict[str, float]) -> Path:
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_difference_is_relative_and_ignores_what_is_measured(tmp_path: Path) -> None:
    one = run_folder(tmp_path / "a", {"step": 1, "loss": 200.0, "time/step_s": 1.0})
    same = run_folder(tmp_path / "b", {"step": 1, "loss": 200.0, "time/step_s": 9.0})
    other = run_folder(tmp_path / "c", {"step": 1, "loss": 201.0, "time/step_s": 1.0})
    short = run_folder(tmp_path / "d")
    assert largest_difference([one, same]) == 0.0
    assert largest_difference([one, same, other]) == pytest.approx(1 / 200)  # |200 - 201| / 200
    assert largest_difference([one, short]) == float("inf")
    assert largest_difference([one]) == 0.0


def test_a_replica_brings_errors_back_as_one_line(tmp_path: Path) -> None:
    def refuse(folder: Path, stop: StopRequest) -> Path:
        raise DataError("no such file")

    def stopped(folder: Path, stop: StopRequest) -> Path:
        raise RunStopped(f"stopped by {stop.reason}")

    assert Replica().train(refuse, tmp_path) == Outcome(None, None, "no such file")
    asked = Replica()
    asked.ask("a test")
    assert asked.train(stopped, tmp_path) == Outcome(None, "stopped by a test", None)
    assert Replica().train(lambda folder, stop: folder, tmp_path) == Outcome(tmp_path, None, None)


def test_an_error_comes_before_an_early_end(tmp_path: Path) -> None:
    done, early, wrong = Outcome(tmp_path, None, None), Outcome(None, "after step 3", None), Outcome(None, None, "bad")
    assert _folders({"b": done, "a": done}) == {"a": tmp_path, "b": tmp_path}
    with pytest.raises(RunStopped, match="node n2: after step 3"):
        _folders({"n1": done, "n2": early})
    with pytest.raises(ReplicaError, match="node n3: bad"):
        _folders({"n2": early, "n3": wrong})


# --- the commands ---


def test_the_smoke_command_alone_says_how_to_start_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert entry_point(["cluster", "smoke", LOCAL]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("nemo-uecr: error: ")
    assert "sbatch" in last or "nemo-uecr[ray]" in last


def test_the_node_command_is_srun_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    limits = ["--register-s", "1", "--heartbeat-s", "1", "--silence-s", "1", "--port", "9900"]
    words = ["--job", str(tmp_path), "--nodes", "n1", "--gpus", "0", "--cpus", "1", *limits, LOCAL]
    assert entry_point(["cluster", "node", *words]) == 2
    assert "is none of the job's nodes n1" in capsys.readouterr().err


def test_a_wrong_port_is_blamed_on_the_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    limits = ["--register-s", "1", "--heartbeat-s", "1", "--silence-s", "1", "--port", "70000"]
    words = ["--job", str(tmp_path), "--nodes", "n1", "--gpus", "0", "--cpus", "1", *limits, LOCAL]
    assert entry_point(["cluster", "node", *words]) == 2
    assert JobFolder(tmp_path).cause() == "node n1: --ray-port: got 70000, expected 1024 to 65534"


def test_a_wrong_configuration_is_blamed_on_the_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    limits = ["--register-s", "1", "--heartbeat-s", "1", "--silence-s", "1", "--port", "9900"]
    words = ["--job", str(tmp_path), "--nodes", "n1,n2", "--gpus", "0", "--cpus", "1", *limits, LOCAL]
    assert entry_point(["cluster", "node", *words]) == 2
    assert (
        JobFolder(tmp_path).cause()
        == f"node n1: {LOCAL}: backend local runs on one node, the job has 2; sbatch --nodes=1"
    )
    assert JobFolder(tmp_path).ended()
    assert os.listdir(tmp_path)
