"""The audit of a teacher; its scores compared between engines, or with and without FP8 (`teacher compare`).

Shape legend: B = responses, T = tokens (padded), N = scored tokens of all responses in a flat list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nemo_uecr.audit.advice import FLOOR, Facts, Remark, advice_lines, measured_lines
from nemo_uecr.audit.groups import rows_of
from nemo_uecr.audit.output import Audit, Numbers, tracked
from nemo_uecr.audit.store import STUDENT, CheckpointTokens, Scored
from nemo_uecr.config.schema import Quantize
from nemo_uecr.core import GAP_CLIP
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import DataError, ScoreError
from nemo_uecr.generation.engines import start_vllm
from nemo_uecr.stats import Array
from nemo_uecr.tables import shown

if TYPE_CHECKING:
    from nemo_uecr.local.sequences import Sequences

QUANTILES = (0.5, 0.9, 0.99, 0.999)
#: Probabilities of the plotted quantile function, denser towards 1.
GRID = np.concatenate([np.linspace(0.0, 0.9, 46), 1.0 - np.geomspace(0.1, 1e-4, 31)[1:], [1.0]])
NOTE = (
    "What responses to training problems show of a teacher, with 95% intervals over problems, and what follows "
    "(docs/teachers.md). kappa is about this student and changes as it learns; a good teacher that writes otherwise "
    "than the student may have a low one. The bounds come from small models; no larger one has tested them."
)
ENGINES_NOTE = (
    " Engines score the same tokens again and are compared with transformers in float32, as written by `nemo-uecr "
    "score`. Their noise is the standard deviation of R^T's differences; std_floor is three times that of alpha R^T, "
    "at which noise moves an advantage by a third. Curves: share of tokens (vertical) with a larger difference "
    "(horizontal); differences below 1e-8 are drawn there."
)
COLUMNS = ("", "value", "what it means", "how sure")


class EngineScores(NamedTuple):
    """[N] float32 nats; an engine without the full distribution has no entropy."""

    logp: Tensor
    entropy: Tensor | None

    def at(self, chosen_N: Tensor) -> EngineScores:
        """Those of some tokens."""
        return EngineScores(self.logp[chosen_N], None if self.entropy is None else self.entropy[chosen_N])


class Reference(NamedTuple):
    """Reference scores [N], with the student's nats and the response of each token, and the group of each response."""

    logp: Tensor
    entropy: Tensor
    student_logp: Tensor
    response_N: Array
    group_B: Array
    sampled_M: Tensor  # which of all tokens that an engine scores are the sampled ones, N of them

    def teacher_reward(self, logp_N: Tensor) -> Tensor:
        """[B] R^T in nats, from these log-probabilities of the teacher."""
        gap_N = (logp_N.double() - self.student_logp.double()).clamp(-GAP_CLIP, GAP_CLIP).numpy()
        return torch.from_numpy(np.bincount(self.response_N, gap_N) / np.bincount(self.response_N))


class Engine(NamedTuple):
    """How an engine scores responses with a model folder, and its requirements."""

    score: Callable[[str, Sequences], EngineScores]
    package: str = "transformers"
    gpu: bool = False

    @property
    def missing(self) -> str | None:
        """Why it cannot run here; None if it can."""
        if self.gpu and not torch.cuda.is_available():
            return "needs a GPU"
        installed = find_spec(self.package.partition(".")[0]) and find_spec(self.package)
        return None if installed else f"{self.package} is not installed"


def teacher_audit(facts: Facts, compared: Numbers) -> Audit:
    """What was measured, how far engines differ if they are compared, and the advice."""
    advised = advice_lines(facts)
    numbers = vars(facts) | {"method": facts.method.name} | compared
    numbers["advice"] = {line.name: line.value for line in advised}
    lines = [*measured_lines(facts), *engine_lines(facts, compared), *advised]
    note = NOTE + ENGINES_NOTE if compared else NOTE
    return Audit("teacher", "What the teacher is worth", note, numbers, COLUMNS, lines, drawn=bool(compared))


def engine_lines(facts: Facts, compared: Numbers) -> list[Remark]:
    """One line per engine: the noise of its scores, or why it cannot run here."""
    lines, alpha = [], facts.method.settings().get("alpha", 1.0)
    for name, found in compared.get("engines", {}).items():
        if "skipped" in found:
            lines.append(Remark(f"noise of {name}", "-", found["skipped"]))
            continue
        logp, reward = found["logp"], found["teacher_reward"]
        share = shown(100 * reward["share_of_spread"], ".0f")
        floor = f"{share}% of the spread of R^T; std_floor {alpha * reward['std_floor']:.2g}"
        tokens = f"log-probabilities differ by {logp['quantiles']['0.99']:.2g} at 99%, {logp['max']:.2g} at most"
        lines.append(Remark(f"noise of {name}", f"{reward['std']:.2g}", f"nats, {floor}; {tokens}"))
    return lines


def compare_engines(scores: Scored, model: str, engines: Sequence[str], *, responses: int | None) -> Numbers:
    """Differences of each engine from the reference, over the first ``responses`` or all."""
    if scores.plan["dtype"] != "float32":
        raise DataError(f"{scores.folder} was scored in {scores.plan['dtype']}; expected float32, the reference")
    sequences, reference = _reference(scores, responses)
    differences: dict[str, Numbers] = {}
    for name in tracked(engines, "engines"):
        if missing := ENGINES[name].missing:
            differences[name] = {"skipped": missing}
        else:
            found = ENGINES[name].score(model, sequences)
            differences[name] = compared(reference, found.at(reference.sampled_M), name)
    return {
        "scores": scores.provenance(),
        "reference": "transformers, float32",
        "responses_compared": len(sequences.responses),
        "tokens_compared": len(reference.logp),
        "probabilities": GRID,
        "engines": differences,
    }


def _reference(scores: Scored, limit: int | None) -> tuple[Sequences, Reference]:
    from nemo_uecr.audit.score import sequences_of

    prompt_ids, token_ids, sampled = (scores.column(name) for name in ("prompt_ids", "token_ids", "sampled"))
    spans: list[tuple[int, CheckpointTokens, slice]] = []
    for step in scores.checkpoints:
        if limit is not None and len(spans) >= limit:
            break
        tokens = scores.tokens(STUDENT, step)
        spans += [(row, tokens, tokens.span(place)) for place, row in enumerate(tokens.rows.tolist())]
    spans = spans[:limit]
    rows = [row for row, _, _ in spans]
    logp, entropy, student = (
        torch.cat([getattr(tokens, name)[span] for _, tokens, span in spans])
        for name in ("teacher_logp", "entropy", "anchor_logp")
    )
    response_N = np.repeat(np.arange(len(rows)), [span.stop - span.start for _, _, span in spans])
    sampled_M = torch.tensor([each for row in rows for each in sampled[row]])
    reference = Reference(logp, entropy, student, response_N, scores.group_B[rows], sampled_M)
    return sequences_of([(prompt_ids[row], token_ids[row]) for row in rows]), reference


def compared(reference: Reference, scores: EngineScores, engine: str) -> Numbers:
    """Differences of an engine's scores and of R^T: largest and its position, mean, std, quantiles."""
    logp = _differences(reference.logp, scores.logp, engine)
    reward_B = reference.teacher_reward(reference.logp)
    reward = _differences(reward_B, reference.teacher_reward(scores.logp), engine)
    groups = [reward_B[rows].std(correction=0) for rows in rows_of(reference.group_B) if len(rows) > 1]
    spread = float(torch.stack(groups).mean()) if groups else math.nan
    shares = {"spread": spread, "share_of_spread": reward["std"] / spread, "std_floor": FLOOR * reward["std"]}
    return {
        "logp": logp,
        "entropy": None if scores.entropy is None else _differences(reference.entropy, scores.entropy, engine),
        "teacher_reward": reward | shares,
    }


def _differences(reference_N: Tensor, score_N: Tensor, engine: str) -> Numbers:
    signed_N = score_N.double().numpy() - reference_N.double().numpy()
    if not np.isfinite(signed_N).all():
        at = int(np.isfinite(signed_N).argmin())
        values = f"{engine} gives {float(score_N[at])}, the reference {float(reference_N[at])}"
        raise ScoreError(f"{values} at index {at} of the compared scores; expected finite nats")
    size_N = np.abs(signed_N)
    return {
        "max": size_N.max(),
        "at_token": int(size_N.argmax()),
        "mean": size_N.mean(),
        "mean_signed": signed_N.mean(),
        "std": signed_N.std(),
        "quantiles": {str(q): float(value) for q, value in zip(QUANTILES, np.quantile(size_N, QUANTILES), strict=True)},
        "curve": np.quantile(size_N, GRID),
    }


# The engines


def _whole(sequences: Sequences) -> list[tuple[int, list[int]]]:
    """The prompt length and all token ids of each sequence."""
    pairs = zip(sequences.prompts, sequences.responses, strict=True)
    return [(len(prompt.token_ids), [*prompt.token_ids, *response.token_ids]) for prompt, response in pairs]


def _transformers(model: str, sequences: Sequences, *, dtype: str, quantize: Quantize = "none") -> EngineScores:
    from nemo_uecr.audit.score import scores_of
    from nemo_uecr.local.token_model import load_model

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded = load_model(model, role="teacher", dtype=dtype, device=device, master_weights=False, quantize=quantize)
    # One response at a time: shapes differ from the reference's, so that their rounding shows as well.
    found, mask_BT = scores_of(sequences, loaded, {}, batch=1), sequences.mask_BT
    return EngineScores(found["teacher_logp"][mask_BT], found["teacher_entropy"][mask_BT])


@torch.no_grad()
def _megatron(model: str, sequences: Sequences) -> EngineScores:
    from nemo_uecr.conversion.bridge import Bridge
    from nemo_uecr.conversion.on_cpu import megatron_on_cpu
    from nemo_uecr.conversion.proof import megatron_logits
    from nemo_uecr.conversion.reading import read_qwen3
    from nemo_uecr.scoring.dense import token_scores

    logp, entropy, folder = [], [], Path(model)
    with megatron_on_cpu():
        module = Bridge(folder, read_qwen3(folder)).from_huggingface()
        for start, ids in _whole(sequences):
            whole = torch.tensor(ids)
            logits_NV, target_N = megatron_logits(module, whole[None])[0, start - 1 : -1], whole[start:]
            found = token_scores(logits_NV, target_N, temperatures=(1.0,), entropy=True)
            assert found.entropy is not None
            logp.append(found.at(1.0))
            entropy.append(found.entropy)
    return EngineScores(torch.cat(logp), torch.cat(entropy))


def _vllm(model: str, sequences: Sequences, *, dtype: str, quantization: str | None = None) -> EngineScores:
    from vllm import SamplingParams

    whole = _whole(sequences)
    longest = 1 + max(len(ids) for _, ids in whole)
    engine = start_vllm(model, dtype=dtype, max_length=longest, lora_rank=0, quantization=quantization)
    # prompt_logprobs=0: the token of the prompt alone. vLLM does not return the distribution for an entropy.
    sampling = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False)
    outputs = engine.generate([{"prompt_token_ids": ids} for _, ids in whole], sampling, use_tqdm=False)
    values = [
        output.prompt_logprobs[at][ids[at]].logprob
        for (start, ids), output in zip(whole, outputs, strict=True)
        for at in range(start, len(ids))
    ]
    return EngineScores(torch.tensor(values), None)


ENGINES = {
    "transformers": Engine(partial(_transformers, dtype="float32")),
    "transformers-bf16": Engine(partial(_transformers, dtype="bfloat16")),
    "transformers-int8": Engine(partial(_transformers, dtype="bfloat16", quantize="int8"), "torchao"),
    "transformers-nf4": Engine(partial(_transformers, dtype="bfloat16", quantize="nf4"), "bitsandbytes"),
    "megatron": Engine(_megatron, "megatron.bridge"),
    "vllm": Engine(partial(_vllm, dtype="float32"), "vllm"),
    "vllm-bf16": Engine(partial(_vllm, dtype="bfloat16"), "vllm", gpu=True),
    "vllm-fp8": Engine(partial(_vllm, dtype="bfloat16", quantization="fp8"), "vllm", gpu=True),
}


# Two scorings of one batch


def teacher_effect(
    first: ScoredBatch, second: ScoredBatch, advantage: Callable[[ScoredBatch], Tensor]
) -> list[Numbers]:
    """Compare two teachers' scores of the same tokens.

        delta_t = log pi_T(y_t) - log pi_old(y_t),   H_t = -sum_v p_T(v) log p_T(v)

    ``first`` is the reference (bf16), ``second`` the one in question (FP8); ``advantage`` computes the final advantages
    [B, T] of a batch. Returns the effect on gap and, if both have it, entropy, in nats per token, and on the advantage.
    """
    mask_BT = first.mask_BT
    for name in ("mask_BT", "group_B", "task_reward_B", "old_logp_BT"):
        if not torch.equal(getattr(first, name), getattr(second, name)):
            field = name.rpartition("_")[0]
            raise DataError(f"{field} differs between the two; expected one batch, scored by the teacher in two ways")
    gaps = [batch.gap_BT[mask_BT] for batch in (first, second)]
    effects = [_effect("gap", "nats", *gaps, signed=True)]
    if first.teacher_entropy_BT is not None and second.teacher_entropy_BT is not None:
        entropies = first.teacher_entropy_BT[mask_BT], second.teacher_entropy_BT[mask_BT]
        effects.append(_effect("entropy", "nats", *entropies, signed=False))
    effects.append(_effect("advantage", "1", advantage(first)[mask_BT], advantage(second)[mask_BT], signed=True))
    return effects


def _effect(quantity: str, unit: str, before_N: Tensor, after_N: Tensor, *, signed: bool) -> Numbers:
    """Differences of a quantity, second minus first; ``flipped`` is the share of changed signs, if it is signed."""
    before_N, after_N = before_N.double(), after_N.double()
    difference_N = after_N - before_N
    size_N = difference_N.abs()
    return {
        "quantity": quantity,
        "unit": unit,
        "spread": float(before_N.std(correction=0)),  # of the first: the scale of the differences
        "bias": float(difference_N.mean()),
        "mean": float(size_N.mean()),
        "high": float(np.quantile(size_N.numpy(), 0.99, method="inverted_cdf")),  # torch.quantile: 2^24 values at most
        "largest": float(size_N.max()),
        "flipped": float((before_N.sign() != after_N.sign()).double().mean()) if signed else None,
    }
