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
from tests.local import tiny

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


@pytest.mark.parametrize(
    ("word", "message"),
    [("parameters.mixx=1", "the nearest is 'mix'"), ("parameters.mix=1.5", "expected a number from 0 to 1"),
     ("parameters.mix=nan", "expected a number from 0 to 1"), ("parameters.mix=x", "with a number")],
)  # fmt: skip
def test_a_wrong_parameter(
    batch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str, message: str
) -> None:
    out = tmp_path / "out.safetensors"
    assert entry_point(["replay", str(batch), "--method", "rlsd", "--set", word, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_uecr_by_the_paper(batch: Path, tmp_path: Path) -> None:
    """The whole method again in float64, response by response, straight from the equations."""
    found = replay(batch, tmp_path / "out.safetensors", "uecr", "alpha=0.8", "rho=.5", "tau_delta=2", "tau_entropy=0.7")
    given = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in made().items()}
    mask = given["mask"]
    reward = torch.stack([
        (given["teacher_logp"] - given["old_logp"])[row][mask[row]].clamp(-5, 5).mean() for row in range(6)
    ])  # fmt: skip
    unified = given["task_reward"] + 0.8 * reward
    for row in range(6):
        group = given["group"] == given["group"][row]
        scale = unified[group].std(correction=0) + 1e-6
        whole = (unified[row] - unified[group].mean()) / scale
        task = (given["task_reward"][row] - given["task_reward"][group].mean()) / scale
        delta = (given["teacher_logp"] - given["old_logp"])[row][mask[row]]
        direction = torch.tanh(task.sign() * delta / (2 * 2.0))
        confidence = torch.exp(-given["teacher_entropy"][row][mask[row]] / 0.7)
        q = 0.5 * confidence * (direction - (confidence * direction).sum() / confidence.sum())
        assert found["advantage"][row][mask[row]].double() == pytest.approx(whole + 0.5 * task * q, abs=2e-6)
        assert found["weight"][row][mask[row]].double() == pytest.approx(1 + 0.5 * q, abs=1e-6)
        assert found["residual"][row][mask[row]].double() == pytest.approx(q, abs=1e-6)
        assert float(found["advantage_unified"][row]) == pytest.approx(float(whole), abs=2e-6)
        assert float(found["teacher_reward"][row]) == pytest.approx(float(reward[row]), abs=1e-6)


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_masks_of_zeros_and_ones(batch: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    expected = replay(batch, tmp_path / "a.safetensors", "uecr", *ALL)["advantage"]
    other = write(tmp_path / "other.safetensors", made() | {"mask": made()["mask"].to(dtype)})
    assert torch.equal(replay(other, tmp_path / "b.safetensors", "uecr", *ALL)["advantage"], expected)


def test_later_setting_wins_and_the_flag_repeats(batch: Path, tmp_path: Path) -> None:
    expected = replay(batch, tmp_path / "a.safetensors", "uecr", *ALL, "alpha=0.25")["advantage"]
    assert not torch.equal(replay(batch, tmp_path / "b.safetensors", "uecr", *ALL)["advantage"], expected)
    out = tmp_path / "c.safetensors"
    words = ["replay", str(batch), "--set", *ALL, "--method", "uecr", "--set", "alpha=0.25", "--out", str(out)]
    assert entry_point(words) == 0
    assert torch.equal(load_file(out)["advantage"], expected)


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


def test_runs_own_batch_gives_the_runs_own_numbers(tmp_path: Path) -> None:
    folder = tiny.run(tmp_path / "run", "telemetry.save_batch_every=1", "train.steps=1", "method.rho=0.3")
    batch = folder / "batches" / "step-000001.safetensors"
    settings = ("alpha=1", "rho=.3", "tau_delta=1", "tau_entropy=1")
    found = replay(batch, tmp_path / "out.safetensors", "uecr", *settings)
    sampled = found["advantage"][load_file(batch)["mask"]].double()
    (record,) = tiny.metrics(folder)
    assert float(sampled.mean()) == record["advantage/mean"]
    assert float(sampled.min()) == record["advantage/min"]
    assert float(found["weight"][load_file(batch)["mask"]].double().max()) == record["ecr/weight_max"]


def changed(**tensors: Tensor | None) -> dict[str, Tensor]:
    merged = {**made(), **tensors}
    return {name: tensor for name, tensor in merged.items() if tensor is not None}


def with_value(name: str, row: int, column: int, value: float) -> dict[str, Tensor]:
    tensors = made()
    tensors[name][row, column] = value
    return tensors


BAD_BATCHES = {
    "no mask": (changed(mask=None), "no tensor 'mask'"),
    "no teacher": (changed(teacher_logp=None), "teacher_logp"),
    "other width": (changed(teacher_logp=made()["teacher_logp"][:, :6]), r"teacher_logp has shape [6, 6]"),
    "group of one": (changed(group=torch.tensor([0, 0, 0, 0, 0, 1])), "group 1 has one response"),
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


@pytest.mark.parametrize("content", [b"", b"no safetensors", None, "cut"])
def test_unreadable_batch(
    batch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | str | None
) -> None:
    out = tmp_path / "out.safetensors"
    if content is None:
        batch.unlink()
    else:
        batch.write_bytes(batch.read_bytes()[:-4] if isinstance(content, str) else content)
    message = "no such file" if content is None else "the file is truncated or corrupt"
    refused(capsys, message, ["replay", str(batch), "--method", "uecr", "--set", *ALL, "--out", str(out)], out)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("uerc", ALL, "method 'uerc' is unknown; expected one of grpo"),
        ("uecr", (*ALL, "rho=1"), "rho is 1.0; expected 0 <= rho < 1"),
        ("uecr", (*ALL, "alhpa=1"), "--set alhpa=1: expected key=value with a number"),
        ("uecr", (*ALL, "alpha"), "--set alpha: expected key=value"),
        ("uecr", (*ALL, "alpha=one"), "--set alpha=one: expected key=value with a number"),
        ("uecr", ("alpha=1", "rho=.5", "tau_delta=1"), "needs tau_entropy"),
        ("atod", ("alpha=1",), "needs step"),
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


def test_output_is_replaced_whole(batch: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    replay(batch, out, "grpo", *ALL)
    assert set(replay(batch, out, "uecr", *ALL)) >= TOKENS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch.safetensors", "out.safetensors"]
