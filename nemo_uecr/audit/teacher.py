"""One checkpoint under several engines: how far their log-probabilities and entropies of the same tokens are apart.

Shape legend: b = responses, N = scored tokens of all responses in a flat list.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nemo_uecr.audit.output import Audit, Numbers, Table, progress
from nemo_uecr.audit.store import STUDENT, Scores
from nemo_uecr.errors import DataError, ScoreError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray

QUANTILES = (0.5, 0.9, 0.99, 0.999)
#: Probabilities of the drawn quantile function, denser towards 1.
GRID = np.concatenate([np.linspace(0.0, 0.9, 46), 1.0 - np.geomspace(0.1, 1e-4, 31)[1:], [1.0]])
#: Differences below this are drawn at it: log axes have no zero.
SMALLEST = 1e-8
NOTE = (
    "The same tokens of the same checkpoint, scored again by each engine and compared with transformers in float32 as "
    "`nemo-uecr score` wrote it. Curves: the share of tokens (vertical) whose difference is larger than the value "
    "below; differences under 1e-8 are drawn there. Engines that are not installed here, or need a GPU, are named in "
    "the table."
)


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


def teacher_audit(scores: Scores, model: str, engines: Sequence[Engine], *, responses: int | None) -> Audit:
    """Largest differences and quantiles of each engine against the scores.

    Args:
        scores: responses scored by this teacher with transformers in float32.
        model: folder of the teacher.
        engines: to compare; one that cannot run here is named with the reason.
        responses: how many of the responses; None for all.

    Raises:
        DataError: If the scores are not float32, or an engine cannot load the checkpoint.
    """
    if scores.plan.get("dtype") != "float32":
        raise DataError(f"{scores.folder} was scored in {scores.plan.get('dtype')}; expected float32, the reference")
    request, reference = _reference(scores, responses)
    found: dict[str, Numbers] = {}
    with progress("engines", len(engines)) as advance:
        for engine in engines:
            reason = engine.missing()
            if reason is None:
                found[engine.name] = compared(reference, engine.score(model, request), engine.name)
            else:
                found[engine.name] = {"skipped": reason}
            advance(1)
    numbers: Numbers = {
        "scores": scores.provenance(),
        "reference": "transformers, float32",
        "responses": len(request.responses),
        "tokens": len(reference.logp),
        "probabilities": GRID,
        "engines": found,
    }
    return Audit("teacher", "One teacher under several engines", NOTE, numbers, _table(numbers), draw, (9.2, 3.2))


def _reference(scores: Scores, responses: int | None) -> tuple[Request, EngineScores]:
    prompts = [tuple(ids) for ids in scores.column("prompt_ids")]
    ids: list[tuple[int, ...]] = []
    logp: list[Tensor] = []
    entropy: list[Tensor] = []
    limit = len(prompts) if responses is None else min(responses, len(prompts))
    for tokens in scores.tokens(STUDENT):
        for start, end in zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True):
            if len(ids) == limit:
                break
            ids.append(tuple(tokens.token_ids[start:end].tolist()))
            logp.append(tokens.teacher_logp[start:end])
            entropy.append(tokens.teacher_entropy[start:end])
    return Request(tuple(prompts[:limit]), tuple(ids)), EngineScores(torch.cat(logp), torch.cat(entropy))


def compared(reference: EngineScores, found: EngineScores, engine: str) -> Numbers:
    """Differences of an engine's scores: largest, quantiles, mean, and where the largest is.

    Raises:
        ScoreError: If the engine scored another number of tokens, or a score is not finite.
    """
    return {
        "logp": _differences(reference.logp, found.logp, engine),
        "entropy": None
        if found.entropy is None or reference.entropy is None
        else _differences(reference.entropy, found.entropy, engine),
    }


def _differences(reference_N: Tensor, found_N: Tensor, engine: str) -> Numbers:
    if reference_N.shape != found_N.shape:
        raise ScoreError(f"{engine} scored {len(found_N)} tokens; expected the {len(reference_N)} of the reference")
    signed_N = found_N.double().numpy() - reference_N.double().numpy()
    if not np.isfinite(signed_N).all():
        at = int(np.flatnonzero(~np.isfinite(signed_N))[0])
        raise ScoreError(f"{engine} gives {float(found_N[at])} at token {at}; expected finite nats")
    size_N = np.abs(signed_N)
    return {
        "max": size_N.max(),
        "at_token": int(size_N.argmax()),
        "mean_signed": signed_N.mean(),
        "quantiles": {str(q): float(value) for q, value in zip(QUANTILES, np.quantile(size_N, QUANTILES), strict=True)},
        "curve": np.quantile(size_N, GRID),
    }


# The engines


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
        from nemo_uecr.audit.score import id_sequences
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


# The table and the figure


def _table(numbers: Numbers) -> Table:
    heads = ("engine", "quantity", *(f"{100 * q:g}%" for q in QUANTILES), "max", "mean, signed")
    rows: list[tuple[str, ...]] = []
    for name, found in numbers["engines"].items():
        if "skipped" in found:
            rows.append((name, found["skipped"], *[""] * (len(QUANTILES) + 2)))
            continue
        for quantity in ("logp", "entropy"):
            values = found[quantity]
            if values is None:
                rows.append((name, f"{quantity}: not given by it", *[""] * (len(QUANTILES) + 2)))
                continue
            shown = [f"{value:.1e}" for value in (*values["quantiles"].values(), values["max"])]
            rows.append((name, quantity, *shown, f"{values['mean_signed']:+.1e}"))
    return Table(heads, tuple(rows))


def draw(figure: Figure, numbers: Numbers) -> None:
    """Share of tokens above a difference, by engine."""
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, quantity, title in ((left, "logp", "(a) log-probability"), (right, "entropy", "(b) entropy")):
        _curves(axes, numbers, quantity)
        axes.set_title(title)
        axes.set_xlabel("difference from float32, nats")
    left.set_ylabel("share of tokens above")
    left.legend(loc="lower left", fontsize=8)


def _curves(axes: Axes, numbers: Mapping[str, Numbers], quantity: str) -> None:
    above = 1.0 - np.asarray(numbers["probabilities"])
    shown = [(name, each) for name, each in numbers["engines"].items() if "skipped" not in each]
    for place, (name, found) in enumerate(shown):
        if found[quantity] is not None:
            curve = np.maximum(np.asarray(found[quantity]["curve"]), SMALLEST)
            axes.step(curve, np.maximum(above, 5e-5), where="post", color=f"C{place}", linewidth=1.5, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(5e-5, 1.5)
