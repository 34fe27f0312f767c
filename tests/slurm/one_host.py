"""A real Slurm with two nodes on this host, everything below one folder; its GPUs exist in its books only."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "su")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=17100
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0,defer
ReturnToService=2
KillWait=20
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17101 CPUs=2 RealMemory=4000 Gres=gpu:8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=17102 CPUs=2 RealMemory=4000 Gres=gpu:8
PartitionName=test Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def missing() -> str | None:
    """Why no Slurm can be started here; None if one can."""
    if os.geteuid() != 0:
        return "a Slurm for the test needs root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"{', '.join(absent)} not installed (Debian: slurm-wlm munge)" if absent else None


PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


@dataclass(frozen=True)
class JobEnd:
    """How a job ended."""

    state: str
    lines: list[str]

    @property
    def last(self) -> str:
        """The job's last line."""
        return next(line for line in reversed(self.lines) if line.startswith("slurm: "))

    def said(self, text: str) -> bool:
        """Whether a line of the job contains a text."""
        return any(text in line for line in self.lines)


def failed(end: JobEnd, line: str) -> None:
    """Assert that a job failed with this last line, or one that begins so."""
    assert end.state == "FAILED", end.lines
    deadline = time.monotonic() + 5
    while not end.lines and time.monotonic() < deadline:
        time.sleep(0.1)
    assert end.last.startswith(line), end.lines[-15:]


class OneHostSlurm:
    """The cluster, from `start` to `stop`."""

    def __init__(self, folder: Path) -> None:
        """Choose the folder."""
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._own_munge = False

    def start(self) -> None:
        """Bring munge, the controller and both nodes up."""
        for name in ("state", "log"):
            (self.folder / name).mkdir(parents=True)
        host = socket.gethostname().partition(".")[0]
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(host=host, folder=self.folder))
        for number in range(8):
            (self.folder / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-7]\n")
        self._start_munge()
        self._spawn("slurmctld", "-D")
        self._spawn("slurmd", "-D", "-N", "n1")
        self._spawn("slurmd", "-D", "-N", "n2")
        self._wait_for(lambda: self.call("sinfo", "-h", "-N", "-o", "%N %t").split() == ["n1", "idle", "n2", "idle"])

    def stop(self) -> None:
        """Take down what `start` brought up."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        if self._own_munge:
            os.kill(int(Path("/run/munge/munged.pid").read_text()), signal.SIGTERM)

    def call(self, *words: str) -> str:
        """Output of a Slurm command."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout

    def submit(self, folder: Path, *words: str, **environment: str) -> int:
        """`sbatch` in a folder; returns the job's number."""
        words = ("sbatch", "--parsable", *words)
        done = subprocess.run(
            words, env=self.environment | environment, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def field(self, job: int, name: str) -> str:
        """A field of `scontrol show job`."""
        words = self.call("scontrol", "show", "job", "-o", str(job)).split()
        return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")

    def wait_for_end(self, job: int, log: Path, seconds: float = 150) -> JobEnd:
        """Wait until a job has ended for good."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self._wait_for(lambda: self.field(job, "JobState") in over, seconds, log)
        return JobEnd(self.field(job, "JobState"), log.read_text().splitlines())

    def wait_for_line(self, log: Path, text: str, seconds: float = 120) -> None:
        """Wait until a log contains a text."""
        self._wait_for(lambda: log.is_file() and text in log.read_text(), seconds, log)

    def _wait_for(self, true: Callable[[], bool], seconds: float = 60, log: Path | None = None) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                shown = log.read_text() if log is not None and log.is_file() else self.call("scontrol", "show", "job")
                raise AssertionError(f"not after {seconds:.0f} s:\n{shown}")
            time.sleep(0.3)

    def _start_munge(self) -> None:
        if not Path("/etc/munge/munge.key").exists():
            subprocess.run(["mungekey", "-c"], env=self.environment, check=True)
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode:
            Path("/run/munge").mkdir(exist_ok=True)
            shutil.chown("/run/munge", "munge", "munge")
            subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", shutil.which("munged", path=PATH) or ""], check=True)
            self._own_munge = True

    def _spawn(self, *words: str) -> None:
        log = (self.folder / "log" / f"{len(self._daemons)}-{words[0]}.out").open("wb")
        environment = self.environment | {"LC_ALL": "C"}
        self._daemons.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True))
        log.close()
