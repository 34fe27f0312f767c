"""The comparison of two models, and the weight files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nemo_uecr.conversion.bridge import write_weights
from nemo_uecr.conversion.proof import compare, megatron_scores
from nemo_uecr.errors import CheckpointError, ScoreError
from tests.conversion.real import tensors

SHAPES = {"a": (2, 3), "b": (4,), "c": (5, 2)}


def test_the_largest_difference_and_its_place() -> None:
    tokens = [[5, 6, 7], [8, 9]]
    ours, theirs = [[-1.0, -2.0], [-3.0]], [[-1.0, -2.00003], [-3.00001]]
    agreement = compare(tokens, ours, theirs, 1e-4)
    assert agreement.largest == pytest.approx(3e-5)
    assert agreement.tokens == 3
    with pytest.raises(CheckpointError, match=r"3e-05 nats .* sequence 0, token 2 \(7\)"):
        compare(tokens, ours, theirs, 1e-5)


def test_nan_is_no_agreement() -> None:
    with pytest.raises(CheckpointError, match="nan"):
        compare([[1, 2]], [[-1.0]], [[float("nan")]], 1e-4)
    with pytest.raises(ScoreError):
        megatron_scores(lambda ids, *rest: torch.full((*ids.shape, 10), torch.nan), [[1, 2, 3]])


def values() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def test_weight_files_are_bounded_and_readable(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    write_weights(reversed(values().items()), SHAPES, "float32", folder, 39)  # a has 24 bytes, b 16, c 40
    assert len(list(folder.glob("model-*-of-00003.safetensors"))) == 3
    assert {name: tuple(value.shape) for name, value in tensors(folder).items()} == SHAPES
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {folder.stat().st_mode & 0o666}


def test_weights_of_a_run_that_diverged_are_not_written(tmp_path: Path) -> None:
    given = values() | {"c": torch.full((5, 2), float("inf"))}
    with pytest.raises(CheckpointError, match="c is not finite"):
        write_weights(given.items(), SHAPES, "float32", tmp_path, 39)
    assert not any(tmp_path.iterdir())
