"""`nemo-uecr replay`: what it writes for each method, what it accepts, and what it refuses in one line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nemo_uecr.cli.main import entry_point
from nemo_uecr.core.methods import METHODS

ALL = ("alpha=1", "rho=.5", "tau_delta=1", "tau_entropy=1", "step=4", "seed=3")
COMPONENTS = {"advantage_unified", "advantage_task", "advantage_teacher", "teacher_reward"}
TOKENS = {"weight", "residual", "direction", "confidence"}
#: What the command promises for each method; everything has `advantage` besides.
PROMISED = {
    "grpo": {"advantage_task"},
    "pg_opd": {"teacher_reward"},
    "grpo_plus_opd": {"advantage_opd", "advantage_task", "teacher_reward"},
    "distilled_rl": {"weight", "advantage_task", "teacher_reward"},
    "atod": {"weight", "advantage_task", "teacher_reward"},
    "separate_norm": COMPONENTS - {"advantage_unified"},  # two normalisations have no unified advantage
    "puu": COMPONENTS,
    "uecr": COMPONENTS | TOKENS,
    "ecr_no_entropy": COMPONENTS | TOKENS,
    "ecr_no_projection": COMPONENTS | TOKENS,
    "ecr_full_advantage": COMPONENTS | TOKENS,
    "ecr_alpha_zero": COMPONENTS | TOKENS,
    "ecr_no_gap": COMPONENTS | TOKENS,
    "shuffled_entropy": COMPONENTS | TOKENS,
    "rlsd": {"weight", "advantage_task", "teacher_reward"},
    "g_opd": {"teacher_reward"},
}
#: Further response-level quantities that may stand beside them.
ALSO = {"centre", "unified_std"}


def made() -> dict[str, Tensor]:
    """Six ragged responses of two interleaved prompts; NaN where nothing was sampled, and a hole."""
    generator = torch.Generator().manual_seed(0)
    length = torch.tensor([5, 2, 7, 1, 4, 3])
    mask = torch.arange(7).unsqueeze(0) < length.unsqueeze(1)
    mask[2, 3] = False
    old = -torch.rand(6, 7, generator=generator) - 0.1
    teacher = old + torch.randn(6, 7, generator=generator)
    entropy = torch.rand(6, 7, generator=generator)
    fields = {"old_logp": old, "teacher_logp": teacher, "teacher_entropy": entropy, "initial_logp": old - 0.5}
    return {
        "task_reward": torch.tensor([1.0, 0, 0, 1, 1, 0]),
        "group": torch.tensor([3, 8, 3, 8, 3, 8]),
        "mask": mask,
        **{name: value.masked_fill(~mask, math.nan) for name, value in fields.items()},
    }


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    return write(tmp_path / "batch.safetensors", made())


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def replay(batch: Path, out: Path, method: str, *settings: str) -> dict[str, Tensor]:
    assert entry_point(["replay", str(batch), "--method", method, "--set", *settings, "--out", str(out)]) == 0
    return load_file(out)


@pytest.mark.parametrize("name", list(METHODS))
def test_what_each_method_writes(batch: Path, tmp_path: Path, name: str) -> None:
    found = replay(batch, tmp_path / "out.safetensors", name, *ALL)
    assert {"advantage"} | PROMISED[name] <= found.keys() <= {"advantage"} | PROMISED[name] | ALSO
    mask = made()["mask"]
    for key in {"advantage", "advantage_opd"} & found.keys():
        assert found[key].shape == mask.shape
        assert found[key].dtype == torch.float32
        assert bool((found[key][~mask] == 0).all())
        assert bool(found[key].isfinite().all())
    for key in TOKENS & found.keys():
        assert found[key].shape == mask.shape
    for key in COMPONENTS & found.keys():
        assert found[key].shape == (6,)


def test_a_methods_own_parameter(batch: Path, tmp_path: Path) -> None:
    """log pi_0 = log pi_old - 1/2, so each further unit of extrapolation adds delta + 1/2; the clip is at 5."""
    given = made()
    delta = (given["teacher_logp"] - given["old_logp"])[given["mask"]]
    for strength in ("1.25", "2"):
        words = () if strength == "1.25" else (f"parameters.extrapolation={strength}",)
        found = replay(batch, tmp_path / "out.safetensors", "g_opd", *words)["advantage"][given["mask"]]
        expected = (delta + (float(strength) - 1) * (delta + 0.5)).clamp(-5, 5)
        assert found == pytest.approx(expected, abs=1e-6)


def test_packed_batch_gives_the_padded_ones_numbers(batch: Path, tmp_path: Path) -> None:
    padded, given = replay(batch, tmp_path / "padded.safetensors", "uecr", *ALL), made()
    lengths = torch.tensor([5, 2, 7, 1, 4, 3])
    inside = torch.arange(7).unsqueeze(0) < lengths.unsqueeze(1)
    tensors = {name: value[inside] if value.ndim == 2 else value for name, value in given.items()}
    tensors["offsets"] = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))
    packed = replay(write(tmp_path / "packed.safetensors", tensors), tmp_path / "p.safetensors", "uecr", *ALL)
    for name in ("advantage", "weight", "residual"):
        assert float((packed[name] - padded[name][inside]).abs().max()) <= 1e-6
    assert float((packed["advantage_unified"] - padded["advantage_unified"]).abs().max()) <= 1e-6


def test_seed_step_and_std_matter_where_they_should(batch: Path, tmp_path: Path) -> None:
    def advantage(method: str, *settings: str) -> Tensor:
        return replay(batch, tmp_path / "out.safetensors", method, *ALL, *settings)["advantage"]

    assert not torch.equal(advantage("shuffled_entropy", "seed=1"), advantage("shuffled_entropy", "seed=2"))
    assert torch.equal(advantage("uecr", "seed=1"), advantage("uecr", "seed=2"))
    assert not torch.equal(advantage("atod", "step=0"), advantage("atod", "step=80"))
    # three rewards 1, 0, 1: the sample deviation is larger by sqrt(3/2)
    ratio = advantage("grpo")[0, 0] / advantage("grpo", "std=sample")[0, 0]
    assert float(ratio) == pytest.approx(math.sqrt(1.5), abs=1e-5)
    assert not torch.equal(advantage("grpo", "std_floor=2"), advantage("grpo"))


def test_segments_reach_atod(tmp_path: Path) -> None:
    turns = torch.tensor([0, 0, 1, 1, 2, 2, 2]).expand(6, 7)
    batch = write(tmp_path / "turns.safetensors", made() | {"segments": turns})
    weight = replay(batch, tmp_path / "out.safetensors", "atod", *ALL)["weight"]
    assert float(weight[0, 0]) == float(weight[0, 1])
    assert len(weight[0, :5].unique()) > 1


def with_value(name: str, row: int, column: int, value: float) -> dict[str, Tensor]:
    tensors = made()
    tensors[name][row, column] = value
    return tensors


BAD_BATCHES = {
    "no mask": ({name: tensor for name, tensor in made().items() if name != "mask"}, "no tensor 'mask'"),
    "nan score": (with_value("teacher_logp", 2, 1, math.nan), "teacher_logp of response 2 at token 1 is nan"),
}


def refused(capsys: pytest.CaptureFixture[str], message: str, words: list[str], out: Path) -> None:
    capsys.readouterr()
    assert entry_point(words) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1
    assert not out.exists()
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("case", list(BAD_BATCHES))
def test_bad_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    tensors, message = BAD_BATCHES[case]
    batch, out = write(tmp_path / "bad.safetensors", tensors), tmp_path / "out.safetensors"
    refused(capsys, message, ["replay", str(batch), "--method", "uecr", "--set", *ALL, "--out", str(out)], out)


@pytest.mark.parametrize("there", [True, False])
def test_unreadable_batch(batch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], there: bool) -> None:
    out = tmp_path / "out.safetensors"
    if there:
        batch.write_bytes(batch.read_bytes()[:-4])
    else:
        batch.unlink()
    message = "the file is truncated or corrupt" if there else "no such file"
    refused(capsys, message, ["replay", str(batch), "--method", "uecr", "--set", *ALL, "--out", str(out)], out)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("uerc", ALL, "method 'uerc' is unknown; expected one of grpo"),
        ("uecr", (*ALL, "alhpa=1"), "--set alhpa=1: expected key=value with a number"),
        ("rlsd", ("parameters.mixx=1",), "the nearest is 'mix'"),
        ("uecr", (*ALL, "rho=1"), "rho is 1.0; expected 0 <= rho < 1"),
        ("uecr", ("alpha=1", "rho=.5", "tau_delta=1"), "needs tau_entropy"),
    ],
)
def test_bad_settings(
    batch: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    method: str,
    settings: tuple[str, ...],
    message: str,
) -> None:
    out = tmp_path / "out.safetensors"
    refused(capsys, message, ["replay", str(batch), "--method", method, "--set", *settings, "--out", str(out)], out)


def test_the_batch_itself_is_not_written_over(batch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = batch.read_bytes()
    assert entry_point(["replay", str(batch), "--method", "uecr", "--set", *ALL, "--out", str(batch)]) == 2
    assert "is the input itself" in capsys.readouterr().err
    assert batch.read_bytes() == before
