"""Training jobs of a real two-node Slurm: each ends with its one line, its state, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.local.tiny import SMALL, Assets, metrics
from tests.slurm.conftest import processes
from tests.slurm.one_host import OneHostSlurm, failed
from tests.slurm.page import ROOT, at_home
from tests.slurm.page import job as shown_job

TRAIN = str(ROOT / "slurm" / "train_qwen4b.sbatch")

pytestmark = pytest.mark.usefixtures("nothing_left")
#: A run that does not end by itself while a test looks at it.
LONG = "train.steps=100000"
Submit = Callable[..., tuple[int, Path]]


@pytest.fixture
def submit(slurm: OneHostSlurm, tmp_path: Path, tiny: Assets, environment_folder: Path) -> Submit:
    """Submit the smoke run on two nodes; returns the job and its log."""

    def call(
        *overrides: str,
        sbatch: Sequence[str] = (),
        script: Sequence[str] = (),
        small: Sequence[str] = SMALL,
        batch_script: str | Path = TRAIN,
    ) -> tuple[int, Path]:
        job = slurm.submit(
            tmp_path, "--nodes=2", *sbatch, str(batch_script), "--smoke", "--venv", str(environment_folder), "--config",
            str(tiny.config), "--heartbeat-s", "3", *script, "--", *small, f"run.folder={tmp_path / 'run'}", *overrides,
            UECR_ROOT=str(ROOT),
        )  # fmt: skip
        return job, tmp_path / f"uecr-qwen3-4b-{job}.log"

    return call


def kill(*parts: str) -> None:
    found = processes(*parts)
    assert found, parts
    for number in found:
        os.kill(number, signal.SIGKILL)


def training(slurm: OneHostSlurm, log: Path) -> None:
    """Wait until both replicas have recorded a step."""
    run = log.parent / "run"
    slurm.wait_for_line(run / "n1" / "metrics.jsonl", "\n")
    slurm.wait_for_line(run / "n2" / "metrics.jsonl", "\n")


def test_two_nodes_form_one_cluster_and_train(
    slurm: OneHostSlurm, tmp_path: Path, tiny: Assets, environment_folder: Path
) -> None:
    """The smoke job of docs/cluster.md, with another configuration, small."""
    words = at_home(shown_job("train_qwen4b", "--smoke"), environment_folder)
    words[words.index("--config") + 1] = str(tiny.config)
    folder = f"run.folder={tmp_path / 'run'}"
    words = [folder if word.startswith("run.folder=") else word for word in words]
    assert "train.steps=3" in words
    token = tmp_path / "home" / ".ray" / "auth_token"  # of a Ray that ran in this home
    token.parent.mkdir(parents=True)
    token.write_text("0" * 64)
    home = {"HOME": str(tmp_path / "home")}
    interface = {"NCCL_SOCKET_IFNAME": "lo"}  # Ray takes its address
    words = [*words[:-1], *SMALL, *words[-1:], folder]
    job = slurm.submit(tmp_path, *words, UECR_ROOT=str(ROOT), **home, **interface)
    log = tmp_path / f"uecr-qwen3-4b-{job}.log"
    end = slurm.wait_for_end(job, log)
    assert (end.state, end.said("2 of 2 nodes")) == ("COMPLETED", True), end.lines
    assert not end.said("\x1b["), "Ray's colours in a file"
    assert not end.said("[repeated "), "lines that Ray held back"
    assert end.last.startswith("slurm: DONE: smoke: 2 nodes (n1, n2) agree, largest difference 0;")
    assert metrics(tmp_path / "run" / "n1") == metrics(tmp_path / "run" / "n2")
    assert len(metrics(tmp_path / "run" / "n1")) == 3
    assert list(Path("/tmp").glob(f"uecr-ray-{job}-0")) == []
    logs = tmp_path / "slurm-logs" / f"{job}-0"
    assert {path.name for path in logs.glob("*.log")} == {"node-n1.log", "node-n2.log", "driver.log", "srun.log"}


def test_a_local_run_without_gpus(slurm: OneHostSlurm, tmp_path: Path, tiny: Assets, environment_folder: Path) -> None:
    """The page's job that meets its time limit, so small that it ends before; `--exclusive` has all GPUs in it."""
    words = at_home(shown_job("train_qwen4b", "--time=3"), environment_folder)
    words[words.index("--config") + 1] = str(tiny.config)
    job = slurm.submit(tmp_path, *words[:-2], *SMALL, f"run.folder={tmp_path / 'run'}", UECR_ROOT=str(ROOT))
    end = slurm.wait_for_end(job, tmp_path / f"uecr-qwen3-4b-{job}.log")
    assert end.state == "COMPLETED", end.lines
    assert end.last == f"slurm: DONE: run: {tmp_path / 'run'}"


def test_a_time_limit_saves_requeues_and_resumes(
    slurm: OneHostSlurm, submit: Submit, tmp_path: Path, tiny: Assets
) -> None:
    """The run's length stands in a file, so that the first attempt is cut off however fast the machine is."""
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps({"defaults": str(tiny.config), "train": {"steps": 100_000}}))
    small = [override for override in SMALL if not override.startswith("train.steps=")]
    # Slurm may send the signal up to a minute early: 30 to 90 seconds after the start of two minutes.
    limit = ("--array=1", "--time=2", "--signal=B:USR1@30")
    job, log = submit(sbatch=limit, script=("--config", str(config)), small=small)
    slurm.wait_for_line(log, "slurm: REQUEUED: ", 240)
    logged = {node: tmp_path / "run" / node / "metrics.jsonl" for node in ("n1", "n2")}
    before = {node: path.read_bytes() for node, path in logged.items()}
    reached = max(record.count(b"\n") for record in before.values())
    config.write_text(json.dumps({"defaults": str(tiny.config), "train": {"steps": reached + 3}}))
    end = slurm.wait_for_end(job, log, seconds=900)
    assert end.state == "COMPLETED", end.lines
    assert end.said("slurm: SIGUSR1: asking the run to save and end")
    assert end.said(f"slurm: job {job} attempt 1 on n1 n2")
    assert all("stopped by SIGUSR1 after step" in line for line in end.lines if line.startswith("slurm: REQUEUED: "))
    assert end.last.startswith("slurm: DONE: smoke: 2 nodes (n1, n2) agree, largest difference 0;")
    for node in ("n1", "n2"):
        assert [record["step"] for record in metrics(tmp_path / "run" / node)] == list(range(1, reached + 4))
        assert logged[node].read_bytes().startswith(before[node]), "a step that was saved is not made again"


def test_a_killed_worker(slurm: OneHostSlurm, submit: Submit) -> None:
    job, log = submit(LONG)
    training(slurm, log)
    [raylet] = processes("raylet/raylet", "slurm_node:n2")
    sees = psutil.Process(raylet).environ()
    assert Path(sees["NRL_GPU_CPU_AFFINITY_FILE"]).is_file()  # empty here: no GPU
    assert int(sees["OMP_NUM_THREADS"]) > 0
    assert psutil.Process(raylet).rlimit(psutil.RLIMIT_NOFILE)[0] >= 4096
    kill("raylet/raylet", "slurm_node:n2")
    failed(slurm.wait_for_end(job, log), "slurm: FAILED: node n2: its Ray worker has died")
    assert list((log.parent / "slurm-logs" / f"{job}-0").glob("ray-n*/raylet*.out"))
    assert list(Path("/tmp").glob(f"uecr-ray-{job}-0")) == []


def test_a_lost_node(slurm: OneHostSlurm, submit: Submit) -> None:
    """Slurm itself requeues the job; it waits until there are two nodes again."""
    job, log = submit(LONG)
    training(slurm, log)
    slurm.call("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    try:
        slurm.wait_for_line(log, "slurm: FAILED: node n2: lost, says Slurm, which requeues the job")
    finally:
        slurm.call("scontrol", "update", "nodename=n2", "state=resume")
    slurm.wait_for_line(log, f"slurm: job {job} attempt 1 on n1 n2")
    slurm.call("scancel", str(job))
    assert slurm.wait_for_end(job, log).state == "CANCELLED"


def test_a_dead_srun(slurm: OneHostSlurm, submit: Submit) -> None:
    job, log = submit(LONG)
    training(slurm, log)
    kill("srun --nodes=2", "slurm node --job")
    end = slurm.wait_for_end(job, log)
    failed(end, "slurm: FAILED: node n1: srun ended with code 137")
    assert not end.said("Killed"), "bash's own word, with the whole command line"


def test_a_user_s_error_is_the_cause(slurm: OneHostSlurm, submit: Submit) -> None:
    job, log = submit("student.model_name=/no/such/model")  # what the keys alone show ends a job before Ray
    failed(slurm.wait_for_end(job, log), "slurm: FAILED: node n1: the driver ended with code 2: nemo-uecr: error:")


def test_no_gpu_where_the_job_has_four(slurm: OneHostSlurm, tmp_path: Path, environment_folder: Path) -> None:
    words = ("--venv", str(environment_folder), "--", "uecr.teacher.model_name=t", "uecr.data.subset=8")
    options = ("--export=UECR_ROOT", "--gpus-per-node=4")  # no environment for srun, and no more than four of eight
    job = slurm.submit(tmp_path, *options, TRAIN, *words, UECR_ROOT=str(ROOT))
    end = slurm.wait_for_end(job, tmp_path / f"uecr-qwen3-4b-{job}.log")
    failed(end, "slurm: FAILED: node n1: nvidia-smi shows 0 GPUs, the job has 4 on each node")


def test_the_doctor_measures_the_exchange_of_two_nodes(
    slurm: OneHostSlurm, tmp_path: Path, environment_folder: Path
) -> None:
    """On a node, as docs/cluster.md calls it; the other findings are those of a machine without GPUs."""
    step = ("srun", "--label", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0")
    python = str(environment_folder / "bin" / "python")
    given = ["uecr.teacher.model_name=t", "uecr.data.subset=8", f"uecr.folder={tmp_path / 'run'}"]
    config = str(ROOT / "examples" / "configs" / "uecr_qwen3_4b.yaml")
    said = slurm.call(*step, python, "-m", "nemo_uecr", "doctor", config, *given)
    measured = [line for line in said.splitlines() if "all-reduce" in line]
    assert sorted(line[:9] for line in measured) == ["0: ok    ", "1: ok    "], said
    assert all(" GB/s between the nodes by gloo" in line for line in measured)
