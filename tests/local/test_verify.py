"""`report --verify`: an untouched run passes, and every kind of change is named."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.local import provenance
from nemo_uecr.local.provenance import verify_run
from tests.local import tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    """A finished run with its own copies of models and problems, so that they can be changed."""
    root, assets = tmp_path_factory.mktemp("whole"), tiny.assets()
    for name in ("student", "teacher"):
        shutil.copytree(getattr(assets, name), root / name)
    shutil.copy(assets.problems, root / "problems.jsonl")
    shutil.copytree(trained, root / "run")
    return root


def verified(root: Path) -> dict[str, list[str]]:
    """Inputs moved along with a copy of the whole; the configuration keeps the first place's names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "locate_path", lambda name: str(root / Path(name).name))
        return verify_run(root / "run")


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def test_an_untouched_run_passes(whole: Path) -> None:
    found = verified(whole)
    assert found["changed"] == []
    assert found["unknown"] == []
    assert len(found["same"]) > 40


def replaced(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))


def flipped(path: Path) -> None:
    """One bit of the last byte, the size kept."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "student weights": (
        lambda r: flipped(r / "student" / "model.safetensors"),
        "input 'student/model.safetensors': sha256",
    ),
    "seed": (lambda r: replaced(r / "run" / "config.yaml", "  seed: 0", "  seed: 1"), "seeds.run: 0 in the run"),
    "checkpoint": (
        lambda r: flipped(r / "run" / "checkpoints" / "step-000002" / "model.safetensors"),
        "checkpoints/step-000002/model.safetensors: content changed",
    ),
    "newest checkpoint gone": (
        lambda r: shutil.rmtree(r / "run" / "checkpoints" / "step-000002"),
        "checkpoints/step-000002/manifest.json: missing",
    ),
    "metrics": (
        lambda r: replaced(r / "run" / "metrics.jsonl", '"step": 1', '"step": 9'),
        "metrics.jsonl: content changed",
    ),
}


@pytest.mark.parametrize("kind", list(CHANGES))
def test_a_change_is_named(copy: Path, kind: str) -> None:
    change, expected = CHANGES[kind]
    change(copy)
    found = verified(copy)
    assert any(text.startswith(expected) for text in found["changed"]), found["changed"]
    # a name for what changed, and not for the rest: an edited value also changes the file that it stands in
    assert len(found["changed"]) <= 2, found["changed"]


def test_a_resumed_run_passes_and_keeps_what_was_different(
    tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    replaced(folder / "provenance.json", provenance.package_source()[0]["package_sha256"], "0" * 64)
    first = json.loads((folder / "provenance.json").read_text())
    diff = b"of the first steps"
    (folder / "source.diff").write_bytes(diff)
    tiny.run(folder, *tiny.every(), "train.steps=3", resume=True)
    assert "earlier steps ran on different code of this package" in caplog.text
    assert verify_run(folder)["changed"] == []
    assert json.loads((folder / "provenance-1.json").read_text())["config_sha256"] == first["config_sha256"]
    assert (folder / "source-1.diff").read_bytes() == diff


def test_an_attempt_without_a_checkpoint_leaves_no_record_of_its_code(
    tmp_path: Path, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    shutil.rmtree(folder / "checkpoints")
    code = provenance.package_source()[0]["package_sha256"]
    replaced(folder / "provenance.json", code, "0" * 64)
    tiny.run(folder, *tiny.every(), resume=True)
    assert "other code" not in caplog.text
    assert not provenance.of_other_code(folder, code)


def test_the_source_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit, then an edit, then a new file: each shows, and a package outside git has no commit."""
    package = tmp_path / "nemo_uecr"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1\n")
    monkeypatch.setattr(provenance, "PACKAGE", package)
    assert provenance.package_source()[0]["commit"] is None
    words = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*words, *command], check=True)
    clean, diff = provenance.package_source()
    assert len(str(clean["commit"])) == 40
    assert (clean["dirty"], diff) == (False, b"")
    (package / "__init__.py").write_text("a = 2\n")
    (package / "nüw.py").write_text("b = 3\n")
    edited, diff = provenance.package_source()
    assert (edited["commit"], edited["dirty"]) == (clean["commit"], True)
    assert b"+a = 2" in diff
    assert b"+b = 3" in diff
    assert edited["package_sha256"] != clean["package_sha256"]
