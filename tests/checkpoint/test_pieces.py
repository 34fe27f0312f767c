"""The comparison, the plan of weight files, and the folder in which a conversion works."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nemo_uecr.checkpoint.hf_files import read_hf_files
from nemo_uecr.checkpoint.hf_writer import plan_shards, write_weights
from nemo_uecr.checkpoint.verification import compare
from nemo_uecr.checkpoint.work_folder import WorkFolder
from nemo_uecr.errors import CheckpointError
from nemo_uecr.stopping import JOB_PROGRESS

SHAPES = {"a": (2, 3), "b": (4,), "c": (5, 2)}


def test_the_largest_difference_and_its_place() -> None:
    tokens = [[5, 6, 7], [8, 9]]
    ours, theirs = [[-1.0, -2.0], [-3.0]], [[-1.0, -2.00003], [-3.00001]]
    agreement = compare(tokens, ours, theirs, 1e-4, "Hugging Face")
    assert agreement.largest == pytest.approx(3e-5)
    assert agreement.tokens == 3
    with pytest.raises(CheckpointError, match=r"differ by 3e-05 nats .* sequence 0, token 2 \(7\)"):
        compare(tokens, ours, theirs, 1e-5, "Hugging Face")


def test_a_number_that_is_none() -> None:
    with pytest.raises(CheckpointError, match=r"sequence 0, token 1: got -1\.0 and nan"):
        compare([[1, 2]], [[-1.0]], [[float("nan")]], 1e-4, "Hugging Face")


def test_sequences_of_another_length_are_no_agreement() -> None:
    with pytest.raises(ValueError, match="shorter"):
        compare([[1, 2, 3]], [[-1.0, -2.0]], [[-1.0]], 1e-4, "Hugging Face")


def test_weight_files_are_bounded() -> None:
    # float32: a has 24 bytes, b 16, c 40.
    assert plan_shards(SHAPES, "float32", 40) == [["a", "b"], ["c"]]
    assert plan_shards(SHAPES, "float32", 39) == [["a"], ["b"], ["c"]]
    assert plan_shards(SHAPES, "bfloat16", 40) == [["a", "b", "c"]]


def values() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def test_a_complete_file_is_kept_and_a_damaged_one_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    write_weights(reversed(values().items()), SHAPES, "float32", WorkFolder(folder, {"from": "x"}), 39)
    files = sorted(folder.glob("*.safetensors"))
    before = [file.read_bytes() for file in files]
    times = [file.stat().st_mtime_ns for file in files]
    files[1].write_bytes(b"damaged")
    again = WorkFolder(folder, {"from": "x"})
    assert again.has(files[0].name)
    assert not again.has(files[1].name)
    write_weights(values().items(), SHAPES, "float32", again, 39)
    assert [file.read_bytes() for file in files] == before
    assert [file.stat().st_mtime_ns == time for file, time in zip(files, times, strict=True)] == [True, False, True]
    assert read_hf_files(folder).shapes == SHAPES


def test_a_folder_made_from_something_else_is_emptied(tmp_path: Path) -> None:
    first = WorkFolder(tmp_path / "work", {"from": "x"})
    (first.path / "file").write_text("1")
    first.complete("file")
    assert WorkFolder(tmp_path / "work", {"from": "x"}).has("file")
    other = WorkFolder(tmp_path / "work", {"from": "y"})
    assert not other.has("file")
    assert not (other.path / "file").exists()


def test_a_job_hears_of_new_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt of a conversion writes its small files again; that brings it no nearer to its end."""
    progress = tmp_path / "progress"
    monkeypatch.setenv(JOB_PROGRESS, str(progress))
    for content, advances in (("1", True), ("1", False), ("2", True)):
        work = WorkFolder(tmp_path / "work", {})
        (work.path / "file").write_text(content)
        work.complete("file")
        assert progress.exists() == advances
        progress.unlink(missing_ok=True)


def test_only_complete_files_get_the_name(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "work", {})
    (work.path / "below").mkdir()
    for name in ("whole", "part", "below/whole"):
        (work.path / name).write_text(name)
    work.complete("whole", "below/whole")
    work.finish(tmp_path / "out")
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"out/whole", "out/below/whole"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": None}, "the bridge gave no b"),
        ({"b": torch.zeros(5)}, r"the bridge gave b as \[5\]; expected \[4\]"),
        ({"d": torch.zeros(1)}, "the bridge gave d unexpectedly"),
        ({"c": torch.full((5, 2), float("inf"))}, "c has numbers that are not finite"),
    ],
)
def test_what_the_bridge_gives_is_held_against_the_architecture(
    change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    given = {name: value for name, value in (values() | change).items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        write_weights(given.items(), SHAPES, "float32", WorkFolder(tmp_path / "work", {}), 39)
