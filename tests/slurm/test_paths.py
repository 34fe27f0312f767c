"""Names that a person gives without their folder: nodes look for them from another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *words: str, **environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    done = subprocess.run(words, cwd=folder, env=kept | environment, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_an_environment(tmp_path: Path) -> None:
    (tmp_path / "environment").symlink_to(sys.prefix)
    script = [str(ROOT / "slurm" / "eval.sbatch"), "--venv", "environment", "--dry-run", "--", "m"]
    lines = run(tmp_path, "bash", *script, "--max-tokens", "5", "--out", "o", UECR_ROOT=str(ROOT))
    assert f"environment: {tmp_path}/environment" in next(line for line in lines if "# --- resources: " in line)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("nemo-rl.sqsh", "{folder}/nemo-rl.sqsh"),
        ("./images/nemo-rl", "{folder}/./images/nemo-rl"),
        ("../nemo-rl.sqsh", "{folder}/../nemo-rl.sqsh"),
        ("/images/nemo-rl.sqsh", "/images/nemo-rl.sqsh"),
        ("nvcr.io#nvidia/nemo-rl:v0.7.0", "nvcr.io#nvidia/nemo-rl:v0.7.0"),
    ],
)
def test_an_image(tmp_path: Path, given: str, used: str) -> None:
    """Pyxis takes a name for a file only where it begins with a slash or a dot."""
    text = """source "$ROOT/slurm/common.sh"; SUBMIT_DIR=$PWD LOGS=$PWD CPUS=1
        read_arguments --container "$0"; build_step 2; printf '%s\\n' "${STEP[@]}" """
    lines = run(tmp_path, "bash", "-c", text, given, ROOT=str(ROOT))
    assert f"--container-image={used.format(folder=tmp_path)}" in lines


def test_the_clone(tmp_path: Path) -> None:
    (tmp_path / "clone").symlink_to(ROOT)
    [line] = run(tmp_path, "bash", "-c", 'source "$ROOT/slurm/common.sh"; echo "$ROOT"', ROOT="clone")
    assert line == f"{tmp_path}/clone"


def test_a_killed_step_is_told_by_its_code_alone() -> None:
    """bash's own word on a child that a signal ended would be `Killed`, with the whole command line."""
    script = """
    source slurm/step.sh
    supervisor_is_alive() { :; }
    LOGS=/nonexistent HEARTBEAT_S=600 GRACE_S=60 CANCELLED='' STOP_SIGNAL='' STOP_KILLS=''
    sleep 600 &
    step=$!
    { sleep 0.5 && kill -KILL $step; } &
    watch_step $step
    echo "code $STEP_CODE"
    """
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == "code 137\n"
