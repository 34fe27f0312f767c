"""What the tests with Megatron-Bridge share: the command in a process of its own, and when to skip."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nemo_uecr.cli.main import entry_point
from tests.megatron_worker.on_ranks import batch

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("megatron", "megatron.bridge", "transformers", "accelerate", "einops", "psutil", "six", "triton")


def missing() -> str | None:
    """The first package that is not installed."""
    for package in PACKAGES:
        try:
            if importlib.util.find_spec(package) is None:
                return package
        except ModuleNotFoundError:
            return package
    return None


marks = [pytest.mark.real, pytest.mark.skipif(missing() is not None, reason=f"{missing()} is not installed")]


def command(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    """`nemo-uecr convert` as a user starts it."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "nemo_uecr", "convert", *map(str, arguments)],
        cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def converted(*arguments: object) -> str:
    """The command's line on standard output, run in this process; it must succeed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = entry_point(["convert", *map(str, arguments)])
    assert code == 0, err.getvalue()[-4000:]
    assert out.getvalue().count("\n") == 1, out.getvalue()
    return out.getvalue()


def refused(*arguments: object, leaves: Path) -> str:
    """The command's last line on standard error; exit code 2, and no file more or less in the folder ``leaves``."""
    before = sorted(leaves.rglob("*"))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = entry_point(["convert", *map(str, arguments)])
    assert code == 2, err.getvalue()[-4000:]
    assert out.getvalue() == ""
    assert sorted(leaves.rglob("*")) == before
    last = err.getvalue().splitlines()[-1]
    assert last.startswith("nemo-uecr: error: ")
    return last


def transformers_logp(folder: Path) -> Tensor:
    """Log-probabilities of `batch()` under the model that transformers loads, [B, T] in nats; 0 beyond each row."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    ids, lengths = batch()["input_ids"], batch()["input_lengths"]
    with torch.no_grad():
        logp = torch.log_softmax(model(input_ids=ids).logits[:, :-1], dim=-1)
    taken = logp.gather(2, ids[:, 1:, None]).squeeze(2)
    inside = torch.arange(1, ids.shape[1]) < lengths[:, None]
    return torch.nn.functional.pad(torch.where(inside, taken, 0.0), (1, 0))


def tensors(folder: Path) -> dict[str, Tensor]:
    """All weights of a Hugging Face folder."""
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found
