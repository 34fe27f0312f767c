"""`report --verify`: an untouched run passes, and every kind of change is named."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.config.schema import Config
from nemo_uecr.local import source
from nemo_uecr.local.verify import Verification, verify_run
from tests.local import tiny

RUN = ("train.steps=3", "telemetry.save_batch_every=1", "evaluation.every=1", "checkpoint.every=1")


def objective_of(config: Config) -> str:
    """What `tiny.run` hands to the run."""
    return "objective"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its own copies of models and problems, so that they can be changed."""
    root = tmp_path_factory.mktemp("whole")
    assets = tiny.assets()
    for name in ("student", "teacher"):
        shutil.copytree(getattr(assets, name), root / name)
    shutil.copy(assets.problems, root / "problems.jsonl")
    shutil.copy(assets.problems, root / "held_out.jsonl")
    (root / "manifest.json").write_text("{}")
    inputs = (
        f"student.model_name={root}/student",
        f"teacher.model_name={root}/teacher",
        f"data.train={root}/problems.jsonl",
        f"evaluation.benchmarks={{held_out: {root}/held_out.jsonl}}",
    )
    tiny.run(root / "run", *RUN, *inputs)
    return root


def located(root: Path) -> Callable[[str], str]:
    """Inputs moved along with a copy of the whole; the configuration keeps the first place's names."""
    return lambda name: str(root / Path(name).name)


def verified(root: Path) -> Verification:
    return verify_run(root / "run", objective_of=objective_of, locate=located(root))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "copy")
    return tmp_path / "copy"


def test_an_untouched_run_passes(whole: Path) -> None:
    found = verified(whole)
    assert found.changed == ()
    assert found.unknown == ()
    assert found.same > 60


def appended(path: Path, text: str = " ") -> None:
    path.write_text(path.read_text() + text)


def replaced(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))


def flipped(path: Path) -> None:
    """One bit of the last byte, the size kept."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def without_line(path: Path, number: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    del lines[number]
    path.write_text("".join(lines))


def edited_record(root: Path, change: Callable[[dict], None]) -> None:
    path = root / "run" / "provenance.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "student weights": (lambda r: flipped(r / "student" / "model.safetensors"), "input 'student': sha256"),
    "teacher weights": (lambda r: flipped(r / "teacher" / "model.safetensors"), "input 'teacher': sha256"),
    "tokenizer": (lambda r: appended(r / "student" / "tokenizer.json"), "input 'student tokenizer': sha256"),
    "chat template": (
        lambda r: appended(r / "student" / "chat_template.jinja", "x"),
        "input 'student chat template': sha256",
    ),
    "training problems": (lambda r: appended(r / "problems.jsonl", "\n"), "input 'train': sha256"),
    "data manifest": (lambda r: appended(r / "manifest.json"), "input 'train manifest': sha256"),
    "benchmark": (lambda r: appended(r / "held_out.jsonl", "\n"), "input 'benchmark held_out': sha256"),
    "configuration": (lambda r: replaced(r / "run" / "config.yaml", "rho: 0.5", "rho: 0.6"), "config.yaml: content"),
    "seed": (lambda r: replaced(r / "run" / "config.yaml", "  seed: 0", "  seed: 1"), "seeds.run: 0 in the run"),
    "decoding": (
        lambda r: replaced(r / "run" / "config.yaml", "temperature: 0.8", "temperature: 0.9"),
        "decoding.rollout.temperature: 0.8 in the run, 0.9 here",
    ),
    "normalisation": (
        lambda r: replaced(r / "run" / "config.yaml", "std: population", "std: sample"),
        "conventions.group_std: population in the run, sample here",
    ),
    "selection rule": (
        lambda r: replaced(r / "run" / "config.yaml", "keep_best: false", "keep_best: true"),
        "selection: last",
    ),
    "reward convention": (
        lambda r: edited_record(r, lambda p: p["conventions"].update(reward="2 for a correct answer")),
        "conventions.reward: 2 for a correct answer in the run",
    ),
    "answer extraction": (
        lambda r: edited_record(r, lambda p: p["conventions"].update(answer="the last number")),
        "conventions.answer: the last number in the run",
    ),
    "an input's digest taken out": (
        lambda r: edited_record(r, lambda p: p["sha256"].pop("teacher")),
        "input 'teacher': not recorded in the run",
    ),
    "version": (
        lambda r: edited_record(r, lambda p: p["versions"].update(torch="1.0")),
        "versions.torch: 1.0 in the run",
    ),
    "processor": (lambda r: edited_record(r, lambda p: p.update(arithmetic="abacus")), "arithmetic: abacus in the run"),
    "commit": (lambda r: edited_record(r, lambda p: p["source"].update(commit="0" * 40)), "source.commit: 000"),
    "code": (
        lambda r: edited_record(r, lambda p: p["source"].update(package_sha256="0" * 64)),
        "source.package_sha256: 000000000000 in the run",
    ),
    "difference to the commit": (lambda r: appended(r / "run" / "source.diff", "x"), "source.diff: content changed"),
    "per-problem output": (
        lambda r: replaced(r / "run" / "evaluations" / "step-000002.jsonl", "wrong", "right"),
        "evaluations/step-000002.jsonl: content changed",
    ),
    "per-problem output gone": (
        lambda r: (r / "run" / "evaluations" / "step-000001.jsonl").unlink(),
        "evaluations/step-000001.jsonl: missing",
    ),
    "saved batch": (
        lambda r: flipped(r / "run" / "batches" / "step-000001.safetensors"),
        "batches/step-000001.safetensors: content changed",
    ),
    "checkpoint": (
        lambda r: flipped(r / "run" / "checkpoints" / "step-000003" / "model.safetensors"),
        "checkpoints/step-000003/model.safetensors: content changed",
    ),
    "checkpoint's manifest": (
        lambda r: appended(r / "run" / "checkpoints" / "step-000002" / "manifest.json"),
        "checkpoints/step-000002/manifest.json: ",
    ),
    "newest checkpoint gone": (
        lambda r: shutil.rmtree(r / "run" / "checkpoints" / "step-000003"),
        "checkpoints/step-000003/manifest.json: missing",
    ),
    "an older checkpoint gone that the run has kept": (
        lambda r: shutil.rmtree(r / "run" / "checkpoints" / "step-000002"),
        "checkpoints/step-000002/manifest.json: missing",
    ),
    "metrics": (
        lambda r: replaced(r / "run" / "metrics.jsonl", '"step": 1', '"step": 9'),
        "metrics.jsonl: content changed",
    ),
    "metrics cut": (
        lambda r: (r / "run" / "metrics.jsonl").write_text("") and None,
        "metrics.jsonl: 0 bytes",
    ),
    "tolerances": (
        lambda r: replaced(r / "run" / "tolerances.json", "0.00001", "0.1"),
        "tolerances.json: ",
    ),
    "a file added to a checkpoint": (
        lambda r: (r / "run" / "checkpoints" / "step-000003" / "notes.txt").write_text("x") and None,
        "checkpoints/step-000003/notes.txt: not in the checkpoint's manifest.json",
    ),
    "a step beyond the last": (
        lambda r: appended(r / "run" / "metrics.jsonl", '{"step": 4}\n'),
        "metrics.jsonl: ",
    ),
    "last line of the list gone": (
        lambda r: without_line(r / "run" / "artifacts.jsonl", -1),
        "artifacts.jsonl: has no entry of evaluation.jsonl at step 3, the run's last",
    ),
    "a line within the list gone": (
        lambda r: without_line(r / "run" / "artifacts.jsonl", 4),
        "artifacts.jsonl:5: entry 6, expected 5",
    ),
    "origins": (lambda r: appended(r / "run" / "origins.json"), "origins.json: "),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(CHANGES))
def test_a_change_is_named(copy: Path, kind: str) -> None:
    change, expected = CHANGES[kind]
    change(copy)
    found = verified(copy)
    assert any(text.startswith(expected) for text in found.changed), found.changed
    # a name for what changed, and not for the rest: an edited value also changes the file that it stands in
    assert len(found.changed) <= 2, found.changed


def test_what_is_not_here_is_said_and_is_no_change(copy: Path) -> None:
    shutil.rmtree(copy / "teacher")
    (copy / "problems.jsonl").unlink()
    found = verified(copy)
    assert found.changed == ()
    assert "input 'teacher': not here" in found.unknown
    assert "input 'train': not here" in found.unknown
    (copy / "run" / "evaluations" / "step-000009.jsonl").write_text("{}")
    assert "evaluations/step-000009.jsonl: not in artifacts.jsonl" in verified(copy).unknown
    shutil.copytree(copy / "run" / "checkpoints" / "step-000003", copy / "run" / "checkpoints" / "step-000004")
    assert "checkpoints/step-000004: not in artifacts.jsonl" in verified(copy).unknown
    shutil.rmtree(copy / "run" / "checkpoints")  # as in an archive without them
    found = verified(copy)
    assert found.changed == ()
    assert "checkpoints: not here" in found.unknown


def test_a_resumed_run_passes_and_keeps_what_was_different(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    tiny.run(folder, *RUN, "train.steps=1")
    first = json.loads((folder / "provenance.json").read_text())
    tiny.run(folder, *RUN, "train.steps=2", resume=True)
    found = verify_run(folder, objective_of=objective_of, locate=lambda name: name)
    assert found.changed == ()
    assert json.loads((folder / "provenance-1.json").read_text())["config_sha256"] == first["config_sha256"]
    tiny.run(folder, *RUN, "train.steps=2", resume=True)
    assert not (folder / "provenance-2.json").exists()


def test_the_source_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit, then an edit, then a new file: each shows, and a package outside git has no commit."""
    package = tmp_path / "nemo_uecr"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1\n")
    monkeypatch.setattr(source, "PACKAGE", package)
    assert source.package_source().commit is None
    words = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*words, *command], check=True)
    clean = source.package_source()
    assert len(clean.commit or "") == 40
    assert clean.record()["dirty"] is False
    (package / "__init__.py").write_text("a = 2\n")
    edited = source.package_source()
    assert (edited.commit, edited.record()["dirty"]) == (clean.commit, True)
    assert b"+a = 2" in edited.diff
    assert edited.package_sha256 != clean.package_sha256
    (package / "new.py").write_text("b = 3\n")
    assert b"+b = 3" in source.package_source().diff
