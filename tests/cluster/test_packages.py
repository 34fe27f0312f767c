"""A node whose environment lacks what a job needs says so in the job's one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFIG = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local" / "demo.yaml"
WITHOUT_RAY = (
    "import sys; sys.modules['ray'] = None; from nemo_uecr.cli.main import entry_point; sys.exit(entry_point())"
)


def test_no_ray(tmp_path: Path) -> None:
    limits = ["--register-s", "5", "--heartbeat-s", "5", "--silence-s", "5"]
    place = ["--job", str(tmp_path), "--nodes", "n1,n2", "--gpus", "0", "--cpus", "1", "--port", "9970"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY, "cluster", "node", *place, *limits, "--smoke", str(CONFIG)],
        env=os.environ | {"SLURMD_NODENAME": "n2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    line = "ray is not installed; run: pip install 'nemo-uecr[ray]'"
    assert (done.returncode, done.stderr.strip()) == (2, f"nemo-uecr: error: {line}")
    assert (tmp_path / "cause").read_text() == f"node n2: {line}\n"
    assert (tmp_path / "ended").read_text() == "2"
