"""The installed command refuses bad input with one line and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "examples" / "configs" / "local" / "demo.yaml")
MINE = str(ROOT / "examples" / "configs" / "local" / "my_problems.yaml")


def command() -> list[str]:
    """The console script of this environment; `python -m nemo_uecr` where the package is not installed."""
    script = shutil.which("nemo-uecr", path=str(Path(sys.executable).parent))
    return [script] if script is not None else [sys.executable, "-m", "nemo_uecr"]


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return subprocess.run(
        [*command(), *arguments], capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


def refusal(*arguments: str, cwd: Path) -> str:
    done = call(*arguments, cwd=cwd)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("nemo-uecr: error: ")
    assert list(cwd.iterdir()) == []
    return lines[0].removeprefix("nemo-uecr: error: ")


REFUSALS = {
    "misspelt key": (("train", DEMO, "train.step=3"), "the nearest known key is train.steps"),
    "rho of one": (("train", DEMO, "method.rho=1.0"), "expected a number >= 0 and < 1"),
    "tau of zero": (("train", DEMO, "method.tau_delta=0.0"), "expected a number > 0"),
    "group of one": (("train", DEMO, "rollout.responses_per_prompt=1"), "expected an integer >= 2"),
    "unknown method": (("train", DEMO, "method.name=uecrr"), "the nearest method is 'uecr'"),
    "no teacher": (("train", DEMO, "teacher.model_name=null"), "method uecr reads a teacher"),
    "no equals sign": (("train", DEMO, "train.steps"), "expected key=value"),
    "text for a number": (("train", DEMO, "train.steps=many"), 'got "many", expected an integer >= 1'),
    "no configuration file": (("train", "nowhere.yaml"), "nowhere.yaml: cannot read the file"),
    "no configuration": (("train", "train.steps=3"), "got 'train.steps=3' where CONFIG belongs; expected a YAML file"),
    "no run to replay": (("replay", "runs/demo", "--check"), "runs/demo: no such folder; expected a run folder, or"),
    "bad step counts": (("smoke", DEMO, "--steps", "1,x"), "expected whole numbers >= 1"),
    "zero steps": (("smoke", DEMO, "--steps", "0"), "expected whole numbers >= 1"),
    "one step count twice": (("smoke", DEMO, "--steps", "1,01"), "--steps: got '1,01', expected each count once"),
    "cold rollout": (("train", DEMO, "rollout.temperature=1e-40"), "expected a number >= 0.001 and <= 1000"),
    "colder rollout": (("train", DEMO, "rollout.temperature=1e-300"), "expected a number >= 0.001 and <= 1000"),
    "hot rollout": (("train", DEMO, "rollout.temperature=1e300"), "expected a number >= 0.001 and <= 1000"),
    "cold evaluation": (("train", DEMO, "evaluation.temperature=1e-300"), "expected 0, or a number from 0.001 to 1000"),
    "hot evaluation": (("train", DEMO, "evaluation.temperature=1e300"), "expected a number >= 0 and <= 1000"),
    "too many threads": (("train", DEMO, "threads=100000000000"), "expected an integer >= 1 and <= 4096, or null"),
    "clip beyond float32": (("train", DEMO, "loss.clip_high=1e308"), "expected a number > 0 and <= 1e+06"),
    "no problem file": (("config", "check", MINE), "data.train: path/to/train.jsonl: no such file"),
    "unknown action": (("config", "shoe", DEMO), "invalid choice: 'shoe'"),
    "unknown command": (("trainn", DEMO), "unknown command 'trainn'; did you mean 'train'?"),
    "far-off command": (("xyz",), "known commands: demo, config, doctor, "),
    "unknown benchmark": (("bench", "speed"), "unknown command 'bench speed'"),
    "missing argument": (("train",), "the following arguments are required: CONFIG; see nemo-uecr train --help"),
    "unknown option": (("train", DEMO, "--resum"), "unrecognized arguments: --resum"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "expected"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    assert expected in refusal(*arguments, cwd=tmp_path)


def test_yaml_faults_name_file_and_line(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    work = tmp_path / "work"
    work.mkdir()
    broken = config / "broken.yaml"
    broken.write_text("run:\n  seed: 1\n  seed: 2\n", encoding="utf-8")
    assert refusal("train", str(broken), cwd=work) == (f"{broken}, line 3: not valid YAML: found duplicate key seed")


def test_config_show_prints_a_configuration(tmp_path: Path) -> None:
    done = call("config", "show", DEMO, "method.name=grpo", cwd=tmp_path)
    assert done.returncode == 0
    assert "  name: grpo                                      # override" in done.stdout.splitlines()
    assert "# objective: loss = PG(A; clip 0.2/0.2)" in done.stdout
    assert "# not used by method grpo: teacher.model_name, method.alpha" in done.stdout


def test_config_check_prints_the_objective(tmp_path: Path) -> None:
    done = call("config", "check", DEMO, "method.name=puu", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("objective: loss = PG(A; clip 0.2/0.2); A = A^U")
    assert done.stdout.endswith("not used by method puu: method.rho, method.tau_delta, method.tau_entropy\n")


def test_version_and_overview(tmp_path: Path) -> None:
    from nemo_uecr import __version__

    assert call("--version", cwd=tmp_path).stdout == f"nemo-uecr {__version__}\n"
    overview = call("--help", cwd=tmp_path)
    assert overview.returncode == 0
    assert "  train " in overview.stdout
    nothing = call(cwd=tmp_path)
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr == overview.stdout


def test_a_reader_that_leaves_is_no_crash(tmp_path: Path) -> None:
    line = f"{' '.join(command())} config show {DEMO} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.startswith("backend: local")
    assert "Traceback" not in done.stderr
