"""docs/add-a-method.md, done as it says: the file, the test and every command, in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.benchmarks.study.small import study_file
from tests.local import tiny

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
FILE, TEST = (text for language, text in FENCES if language == "python")
[STUDY] = (text for language, text in FENCES if language == "yaml")
[COMMANDS] = (text for language, text in FENCES if not language)
#: The demo's configuration stands on the page; the tests have models of their own that are made in seconds.
DEMO = "examples/configs/local/demo.yaml"


def copy_with_the_method(root: Path) -> Path:
    """A copy of the package with the page's two files in it."""
    for name in ("nemo_uecr", "examples", "benchmarks", "tests/core"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "nemo_uecr" / "core" / "methods" / "soft_gate.py").write_text(FILE, encoding="utf-8")
    (root / "tests" / "core" / "test_soft_gate.py").write_text(TEST, encoding="utf-8")
    return root


def run(root: Path, words: list[str]) -> str:
    command = {"nemo-uecr": [sys.executable, "-m", "nemo_uecr"], "python": [sys.executable]}[words[0]]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [*command, *words[1:]], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def tiny_few(folder: Path) -> Path:
    """The arms, tables and map of few.yaml on tiny models."""
    path = study_file(folder)
    content = yaml.safe_load(path.read_text())
    few = yaml.safe_load((ROOT / "examples" / "configs" / "study" / "few.yaml").read_text())
    content |= {key: few[key] for key in ("variants", "arms", "tables", "map")}
    content["task"]["models"] = {"bad_teacher": content["task"]["teacher"]}
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.slow
def test_the_page_from_top_to_bottom(tmp_path: Path) -> None:
    copy = copy_with_the_method(tmp_path / "clone")
    check, test, train, replay = (shlex.split(line) for line in COMMANDS.splitlines())
    told = run(copy, check)
    assert "A = 2 sigmoid(sign(A^GRPO) delta / width) A^GRPO" in told
    assert "width = 1" in told
    assert " passed" in run(copy, test)
    assert train[2] == DEMO
    small = [str(tiny.assets().config), *tiny.SMALL, "telemetry.save_batch_every=1"]
    run(copy, [*train[:2], *small, *train[3:]])
    steps = [json.loads(line) for line in (copy / "runs" / "soft_gate" / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["identity/sign_kept"] == 0 for step in steps)
    assert all(step["identity/budget_error"] > 1e-3 for step in steps), "logged, and no promise"
    assert "2 of 2 saved steps reproduced" in run(copy, replay)
    assert STUDY.startswith("defaults: study/few.yaml\n")
    (copy / "mine.yaml").write_text(STUDY.replace("study/few.yaml", str(tiny_few(copy))), encoding="utf-8")
    run(copy, ["python", "-m", "benchmarks.study", "mine.yaml"])
    summary = (copy / "runs" / "study-mine" / "summary.md").read_text()
    assert all(f"| {arm} |" in summary for arm in ("soft\\_gate", "soft\\_gate.wrong"))
