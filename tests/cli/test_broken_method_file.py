"""A method's file that Python cannot import is one line with file, line and message, in a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "examples" / "configs" / "local" / "demo.yaml"
LINE = '    Entry("mine", "mine", GROUP, TEACHER),\n'
OPENING = "\nADDED = (\n"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with a line for the method `mine`, whose file a test writes."""
    root = tmp_path_factory.mktemp("clone") / "nemo_uecr"
    shutil.copytree(ROOT / "nemo_uecr", root, ignore=shutil.ignore_patterns("__pycache__"))
    registry = root / "method_registry.py"
    registry.write_text(registry.read_text(encoding="utf-8").replace(OPENING, OPENING + LINE), encoding="utf-8")
    return root


def refused(package: Path) -> str:
    """All that `config check` says; it must be one line and exit code 2."""
    done = subprocess.run(
        [sys.executable, "-m", "nemo_uecr", "config", "check", str(CONFIG), "method.name=mine"],
        cwd=package.parent, env=os.environ | {"PYTHONPATH": str(package.parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("nemo-uecr: error: ").rstrip("\n")


def test_a_file_that_is_no_python_is_one_line(package: Path) -> None:
    (package / "core" / "methods" / "mine.py").write_text('"""Mine."""\n\ndef f(:\n    pass\n', encoding="utf-8")
    place = "method mine: core/methods/mine.py line 3"
    assert refused(package) == f"{place}: SyntaxError: invalid syntax; expected a file that Python can import"


def test_a_line_of_the_registry_that_is_no_python_is_one_line(package: Path, tmp_path: Path) -> None:
    copy = tmp_path / "nemo_uecr"
    shutil.copytree(package, copy)
    registry = copy / "method_registry.py"
    text = registry.read_text(encoding="utf-8")
    registry.write_text(text.replace(LINE, LINE.replace(",\n", ",,\n")), encoding="utf-8")
    number = text[: text.index(LINE)].count("\n") + 1
    assert refused(copy) == f"{registry} line {number}: invalid syntax; expected Python"


def with_line(package: Path, copy: Path, line: str) -> Path:
    """A copy of the package whose registry has another line; returns the registry."""
    shutil.copytree(package, copy)
    registry = copy / "method_registry.py"
    registry.write_text(registry.read_text(encoding="utf-8").replace(LINE, f"    {line},\n"), encoding="utf-8")
    return registry


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('Entry("mine", "mine", GROUPS, TEACHER)', "name 'GROUPS' is not defined"),
        ('Entry("mine")', "missing 3 required positional arguments: 'file', 'settings', and 'scores'"),
        ('"mine"', "'str' object has no attribute 'name'"),
    ],
)
def test_a_line_of_the_registry_that_makes_no_entry_is_one_line(
    package: Path, tmp_path: Path, line: str, said: str
) -> None:
    registry = with_line(package, tmp_path / "nemo_uecr", line)
    shown = refused(registry.parent)
    assert shown.startswith(f"{registry} line "), shown
    assert shown.endswith(f"{said}; expected a line as those there"), shown


@pytest.mark.parametrize("file", ["a.b", "../mine"])
def test_a_line_that_names_no_file_of_the_folder(package: Path, tmp_path: Path, file: str) -> None:
    registry = with_line(package, tmp_path / "nemo_uecr", f'Entry("mine", "{file}", GROUP, TEACHER)')
    place = f"core/methods/{file}.py"
    assert refused(registry.parent) == f"method mine: there is no {place}, which its line in method_registry.py names"


def test_a_file_that_ends_the_process(package: Path) -> None:
    (package / "core" / "methods" / "mine.py").write_text("import sys\nsys.exit()\n", encoding="utf-8")
    assert refused(package).startswith("method mine: core/methods/mine.py line 2: SystemExit: ")
