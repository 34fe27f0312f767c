"""NeMo-RL's own unit tests pass with our substitutions entered before and left after each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nemo.inside.conftest import ON_PYTHON_311
from tests.nemo.source import SOURCE

ROOT = Path(__file__).resolve().parents[3]
MODULES = [
    "algorithms/test_advantage_estimator.py", "algorithms/test_grpo.py", "algorithms/test_loss_functions.py",
    "algorithms/test_utils.py",
]  # fmt: skip
PLUGIN = """
import importlib

import pytest
from nemo_uecr.nemo import upstream
from nemo_uecr.stopping import StopRequest

upstream.check()
grpo = importlib.import_module("nemo_rl.algorithms.grpo")
native = grpo._create_advantage_estimator


@pytest.fixture(autouse=True)
def substituted():
    with upstream.substitutions(
        estimator=lambda: None, more_worker_groups=1, stop=StopRequest(), timeouts=[]
    ):
        substitute = grpo._create_advantage_estimator
        grpo._create_advantage_estimator = lambda config: substitute(config) or native(config)
        yield
"""


@pytest.mark.slow
def test_the_native_suite_is_unmoved(nemo_rl: str, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    source = str(SOURCE)
    paths = os.pathsep.join([str(tmp_path), source, str(ROOT), ON_PYTHON_311, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            sys.executable, "-W", "ignore", "-m", "pytest", "-p", "plugin", "-o", "addopts=", "-q", "-rA", "-p",
            "no:cacheprovider", *(f"tests/unit/{module}" for module in MODULES),
        ],
        cwd=source, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    found = re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
    assert len(found) > 90
    assert {name for result, name in found if result != "PASSED"} == set()
