"""docs/add-a-method.md, done as it says: the files and every command, in a folder of the user's; then contributed."""

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

from nemo_uecr.config.load import dump_config, load_config
from tests.benchmarks.study.small import study_file
from tests.local import tiny

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
FILE, TEST = (text for language, text in FENCES if language == "python")
MINE, STUDY = (text for language, text in FENCES if language == "yaml")
[COMMANDS] = (text for language, text in FENCES if not language)
#: The demo's configuration stands on the page; the tests have models of their own that are made in seconds.
DEMO = "local/demo.yaml"


def run(root: Path, words: list[str], package: Path = ROOT) -> str:
    command = {"nemo-uecr": [sys.executable, "-m", "nemo_uecr"], "python": [sys.executable]}[words[0]]
    environment = os.environ | {"PYTHONPATH": str(package)}
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


def small(text: str, folder: Path) -> str:
    """The page's configuration with the tests' models in place of the demo's."""
    content = json.loads(tiny.assets().config.read_text())
    values = yaml.safe_load(text) | {"defaults": str(folder / "small.yaml")}
    small = load_config(tiny.assets().config, [*tiny.SMALL, "telemetry.save_batch_every=1"]).config
    (folder / "small.yaml").write_text(dump_config(small))
    return yaml.safe_dump(content | values)


@pytest.mark.slow
def test_the_page_from_top_to_bottom(tmp_path: Path) -> None:
    assert MINE.startswith(f"defaults: {DEMO}\n")
    (tmp_path / "my_method.py").write_text(FILE)
    (tmp_path / "test_my_method.py").write_text(TEST)
    (tmp_path / "mine.yaml").write_text(small(MINE, tmp_path))
    check, test, train, replay = (shlex.split(line) for line in COMMANDS.splitlines())
    told = run(tmp_path, check)
    assert "A = 2 sigmoid(sign(A^GRPO) delta / width) A^GRPO" in told
    assert "width = 0.5" in told
    assert "2 passed" in run(tmp_path, test)
    run(tmp_path, train)
    steps = [json.loads(line) for line in (tmp_path / "runs/soft_gate/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["identity/sign_kept"] == 0 for step in steps)
    assert all(step["identity/budget_error"] > 1e-3 for step in steps), "logged, and no promise"
    assert "2 of 2 saved steps reproduced" in run(tmp_path, replay)
    assert STUDY.startswith("defaults: study/few.yaml\n")
    (tmp_path / "few").mkdir()
    (tmp_path / "study.yaml").write_text(STUDY.replace("study/few.yaml", str(tiny_few(tmp_path / "few"))))
    run(tmp_path, ["python", "-m", "benchmarks.study", "study.yaml"])
    summary = (tmp_path / "runs/study-mine/summary.md").read_text()
    assert all(f"| {arm} |" in summary for arm in ("soft\\_gate", "soft\\_gate.wrong"))


@pytest.mark.slow
def test_the_method_as_one_of_the_shipped(tmp_path: Path) -> None:
    """The file in a copy of the package, with a name and a source."""
    for name in ("nemo_uecr", "examples", "tests/core"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    named = FILE.replace("    reads = TEACHER\n", '    name, source = "soft_gate", "a page"\n    reads = TEACHER\n')
    (tmp_path / "nemo_uecr/core/methods/soft_gate.py").write_text(named)
    mine = TEST.replace("from my_method import", "from nemo_uecr.core.methods.soft_gate import")
    (tmp_path / "tests/core/test_soft_gate.py").write_text(mine)
    words = ["-m", "pytest", "-q", "tests/core/test_soft_gate.py", "tests/core/test_methods.py", "-k", "soft_gate"]
    assert " passed" in run(tmp_path, ["python", *words], tmp_path)
