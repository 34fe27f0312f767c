"""`FILE.py:NAME`: what is run, under which name, and one line for what cannot be."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from nemo_uecr import door
from nemo_uecr.errors import ConfigError

EXPECTED = "a function without arguments"


def load(text: str, **options: str) -> door.Own:
    return door.load(
        text, expected=EXPECTED, fits=lambda value: callable(value) and not isinstance(value, type), **options
    )


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "own_numbers.py"
    path.write_text("from own_helper import ONE\nTWO = 2\n\ndef three():\n    return ONE + TWO\n")
    (tmp_path / "own_helper.py").write_text("ONE = 1\n")
    return path


def test_a_file_is_run_once_and_again_when_it_has_changed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = load(f"{file}:three")
    assert own.value() == 3
    assert own.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert own.source == file.read_text()
    monkeypatch.chdir(file.parent)
    assert load("own_numbers.py:three").value is own.value
    file.write_text(file.read_text().replace("TWO = 2", "TWO = 5"))  # within the clock's tick, and of the same length
    assert load(f"{file}:three").value() == 6
    with pytest.raises(ConfigError, match=r"own_numbers\.py: sha256 \w{12} here, \w{12} in the run; put"):
        load(f"{file}:three", sha256=own.sha256)


def test_a_file_with_a_packages_name_hides_no_package(file: Path) -> None:
    for name in ("json", "this"):  # imported already, and not yet
        path = file.with_name(f"{name}.py")
        path.write_text("import json\ndef f():\n    return json.dumps([1])\n")
        if name == "json":
            path.write_text("def f():\n    return '[1]'\n")
        assert load(f"{path}:f").value() == "[1]"
        path.unlink()
    import json

    assert json.loads("[1]") == [1]
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        (None, "f", r"own\.py: no such file; expected FILE\.py:NAME"),
        ("def g(): ...\nX = 1", "f", r"own\.py has no 'f'; expected a function without arguments; it has g$"),
        ("from json import dumps", "f", r"own\.py has no 'f'; expected a function without arguments$"),
        ("f = 3", "f", r"own\.py:f is a int; expected a function without arguments"),
        ("class f: ...", "f", r"own\.py:f is a class; expected a function"),
        (
            "\nimport nowhere_at_all",
            "f",
            r"own\.py cannot be imported: line 2: ModuleNotFoundError: No module",
        ),
        ("def f(:\n", "f", r"own\.py cannot be imported: line 1: SyntaxError: invalid syntax"),
        ("raise ValueError('first\\nsecond')", "f", r"own\.py cannot be imported: line 1: ValueError: first$"),
        ("import sys\nsys.exit('no key')", "f", r"own\.py cannot be imported: line 2: SystemExit: no key$"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(tmp_path: Path, text: str | None, name: str, line: str) -> None:
    if text is not None:
        (tmp_path / "own.py").write_text(text)
    for _ in range(2):  # a failed import is tried again
        with pytest.raises(ConfigError, match=line) as refused:
            load(f"{tmp_path}/own.py:{name}")
        assert "\n" not in str(refused.value)


def test_nothing_inside_a_run_folder_is_run(tmp_path: Path) -> None:
    inside = tmp_path / "run" / "batches" / "own.py"
    inside.parent.mkdir(parents=True)
    inside.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(): ...\n")
    for name in door.RUN_FILES:
        (tmp_path / "run" / name).touch()
    (tmp_path / "link.py").symlink_to(inside)
    for path in (inside, tmp_path / "link.py"):
        with pytest.raises(ConfigError, match=r"is inside the run folder .*run, whose code is never run"):
            load(f"{path}:f")
    assert not (tmp_path / "ran").exists()
