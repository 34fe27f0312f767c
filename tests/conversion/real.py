"""What the tests with Megatron-Bridge share: the command, the scores of its result, and when to skip."""

from __future__ import annotations

import importlib.util
import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nemo_uecr.cli.main import entry_point
from nemo_uecr.errors import DependencyError, require_extra
from tests.nemo.on_ranks import batch


def missing() -> str | None:
    """What is not installed."""
    try:
        require_extra("convert")
    except DependencyError as error:
        return str(error)
    return None if importlib.util.find_spec("megatron.bridge") else "megatron.bridge is not installed"


marks = [pytest.mark.real, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


def converted(*arguments: object) -> str:
    """The command's line on standard output, run in this process; it must succeed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = entry_point(["convert", *map(str, arguments)])
    assert code == 0, err.getvalue()[-4000:]
    assert out.getvalue().count("\n") == 1, out.getvalue()
    return out.getvalue()


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
