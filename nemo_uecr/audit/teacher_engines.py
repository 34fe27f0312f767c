"""The engines that can score a given checkpoint's log-probabilities and entropies of given tokens.

Shape legend: b = responses, N = their scored tokens in a flat list.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.errors import DataError


@dataclass(frozen=True)
class Request:
    """Prompts that are read and responses that are scored, as token ids."""

    prompts: tuple[tuple[int, ...], ...]
    responses: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class EngineScores:
    """[N] float32 nats; an engine that gives no full distribution has no entropy."""

    logp: Tensor
    entropy: Tensor | None


@dataclass(frozen=True)
class Engine:
    """An engine by name.

    Attributes:
        name: as in ``--engines``.
        missing: why it cannot run here; None where it can.
        score: scores a request with the checkpoint of a folder.
    """

    name: str
    missing: Callable[[], str | None]
    score: Callable[[str, Request], EngineScores]


def _always() -> None:
    return None


def _without_megatron() -> str | None:
    return None if find_spec("megatron") is not None else "megatron-core is not installed (nemo-uecr[megatron])"


def _without_vllm() -> str | None:
    return None if find_spec("vllm") is not None else "vLLM is not installed"


def _without_gpu() -> str | None:
    return _without_vllm() if torch.cuda.is_available() else "needs a GPU"


def _transformers(dtype: str) -> Callable[[str, Request], EngineScores]:
    def score(model: str, request: Request) -> EngineScores:
        from nemo_uecr.audit.encoding import id_sequences
        from nemo_uecr.local.models import load_model
        from nemo_uecr.local.scores import score as score_sequences

        loaded = load_model(model, role="teacher", dtype=dtype, device=torch.device("cpu"), trained=False)
        loaded.module.requires_grad_(False)
        sequences = id_sequences(request.prompts, request.responses)
        # One response at a time: another shape than that of the reference, so that its rounding shows as well.
        rows = [slice(row, row + 1) for row in range(len(request.prompts))]
        found = score_sequences(loaded, sequences, rows, temperatures=(1.0,), entropy=True)
        mask_BT = sequences.mask()
        entropy = None if found.entropy_BT is None else found.entropy_BT[mask_BT]
        return EngineScores(found.logp[0][mask_BT], entropy)

    return score


def _megatron(model: str, request: Request) -> EngineScores:
    from safetensors.torch import load_file, save_file

    whole = [prompt + response for prompt, response in zip(request.prompts, request.responses, strict=True)]
    tensors = {
        "ids": torch.tensor([token for ids in whole for token in ids]),
        "offsets": torch.tensor([0, *map(len, whole)]).cumsum(0),
        "prompts": torch.tensor([len(prompt) for prompt in request.prompts]),
    }
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "request.safetensors", Path(folder) / "scores.safetensors"
        save_file(tensors, given)
        words = [sys.executable, "-m", "nemo_uecr.audit.megatron_engine", model, str(given), str(out)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise DataError(f"megatron-core cannot score {model!r} ({last[:200]}); expected a Qwen3 folder")
        found = load_file(out)
    return EngineScores(found["logp"], found["entropy"])


def _vllm(dtype: str, quantization: str | None) -> Callable[[str, Request], EngineScores]:
    def score(model: str, request: Request) -> EngineScores:
        from vllm import LLM, SamplingParams

        whole = [prompt + response for prompt, response in zip(request.prompts, request.responses, strict=True)]
        engine: Any = LLM(
            model=model, dtype=dtype, quantization=quantization, max_model_len=1 + max(map(len, whole)),
            enforce_eager=not torch.cuda.is_available(), generation_config="vllm", trust_remote_code=False, seed=0,
            load_format="safetensors",
        )  # fmt: skip
        # 0: of each position the token that stands there. The whole distribution, for the entropy, vLLM does not give.
        sampling = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False)
        inputs = [{"prompt_token_ids": list(ids)} for ids in whole]
        values: list[float] = []
        for prompt, ids, found in zip(
            request.prompts, whole, engine.generate(inputs, sampling, use_tqdm=False), strict=True
        ):
            values += [found.prompt_logprobs[at][ids[at]].logprob for at in range(len(prompt), len(ids))]
        return EngineScores(torch.tensor(values), None)

    return score


ENGINES: dict[str, Engine] = {
    each.name: each
    for each in (
        Engine("transformers", _always, _transformers("float32")),
        Engine("transformers-bf16", _always, _transformers("bfloat16")),
        Engine("megatron", _without_megatron, _megatron),
        Engine("vllm", _without_vllm, _vllm("float32", None)),
        Engine("vllm-bf16", _without_gpu, _vllm("bfloat16", None)),
        Engine("vllm-fp8", _without_gpu, _vllm("bfloat16", "fp8")),
    )
}


def engines_of(names: Sequence[str]) -> list[Engine]:
    """The engines by name.

    Raises:
        DataError: naming one that is unknown.
    """
    for name in names:
        if name not in ENGINES:
            raise DataError(f"--engines {name!r}; expected names of {', '.join(ENGINES)}")
    return [ENGINES[name] for name in names]
