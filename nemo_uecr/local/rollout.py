"""Samples responses with the model's own generation code: for a training step, and for avg@k inside the loop.

Every random stream is a function of seed and position, so a resumed run draws what it would have drawn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from nemo_uecr.config.schema import Config
from nemo_uecr.data.reproducible import derive
from nemo_uecr.errors import ScoreError
from nemo_uecr.evaluation.engines import Decoding, until_end
from nemo_uecr.evaluation.samples import SAMPLES, Sample, sample_lines, summarise, write_samples
from nemo_uecr.files import replace_file
from nemo_uecr.local.batch import FAILURE, write_failure
from nemo_uecr.local.models import TokenModel
from nemo_uecr.local.sequences import Prompt, Response
from nemo_uecr.verifier.pool import check_response


@dataclass(frozen=True)
class Fault:
    """The first token that could not be drawn: the logits at token ``token`` of response ``row`` were not finite."""

    row: int
    token: int
    problem: str

    def error(self, model: TokenModel, where: str) -> ScoreError:
        """The error to stop with; ``where`` names the sample."""
        return ScoreError(
            f"the {model.name} gives logits that are not finite while it answers ({where}) at token {self.token}; "
            "expected finite numbers. Check its weights, or lower train.learning_rate if training began well"
        )


@dataclass(frozen=True)
class Drawn:
    """Responses, and the first fault. A response with a fault ends there, with an end token that was not drawn."""

    responses: list[Response]
    fault: Fault | None


@torch.no_grad()
def draw(model: TokenModel, prompts: Sequence[Prompt], decoding: Decoding, *, seed: int, microbatch: int) -> Drawn:
    """One response for each prompt given; repeat a prompt to sample it again.

    Args:
        model: the policy.
        prompts: one entry a response.
        decoding: how to draw.
        seed: fixes the draws; the stream of each micro-batch is derived from it.
        microbatch: responses sampled at once.
    """
    responses: list[Response] = []
    faults: list[Fault] = []
    for start in range(0, len(prompts), microbatch):
        chunk = prompts[start : start + microbatch]
        finite = _FiniteLogits(max(len(prompt.token_ids) for prompt in chunk), min(model.end_ids))
        with _seeded(derive(seed, "microbatch", start), model.device):
            rows_bt = _generate(model, chunk, decoding, finite)
        for row, ids in enumerate(rows_bt.tolist()):
            cut = until_end(ids, model.end_ids, decoding.max_tokens)
            text = model.tokenizer.decode(list(cut.token_ids), skip_special_tokens=True)
            responses.append(Response(cut.token_ids, text, cut.truncated))
            token = finite.faults.get(row)
            if token is not None and token < len(cut.token_ids):  # nothing reads what follows an end token
                faults.append(Fault(start + row, token, chunk[row].problem.id))
    return Drawn(responses, faults[0] if faults else None)


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Run a block on its own random stream and put the global streams back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _generate(model: TokenModel, prompts: Sequence[Prompt], decoding: Decoding, finite: _FiniteLogits) -> Tensor:
    pad = min(model.end_ids) if model.tokenizer.pad_token_id is None else int(model.tokenizer.pad_token_id)
    width = max(len(prompt.token_ids) for prompt in prompts)
    ids_bt = torch.full((len(prompts), width), pad, dtype=torch.long)
    mask_bt = torch.zeros_like(ids_bt)
    for row, prompt in enumerate(prompts):
        ids_bt[row, width - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
        mask_bt[row, width - len(prompt.token_ids) :] = 1
    drawing: dict[str, float | int | bool] = {"do_sample": False}
    if decoding.temperature > 0:
        drawing = {
            "do_sample": True,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            "top_k": decoding.top_k,
        }
    config = GenerationConfig(
        max_new_tokens=decoding.max_tokens, eos_token_id=sorted(model.end_ids), pad_token_id=pad, **drawing
    )
    with model.forward_context(), _without_model_defaults(model, config):
        out_bt: Tensor = model.module.generate(
            inputs=ids_bt.to(model.device),
            attention_mask=mask_bt.to(model.device),
            generation_config=config,
            logits_processor=[finite],
        )
    return out_bt[:, width:].cpu()


class _FiniteLogits:
    """Ends a response at logits from which nothing can be drawn; greedy decoding would not even notice them."""

    def __init__(self, prompt_width: int, end_id: int) -> None:
        self._prompt_width = prompt_width
        self._end_id = end_id
        self.faults: dict[int, int] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        bad_b = (scores.isnan() | (scores == torch.inf)).any(dim=1) | (scores == -torch.inf).all(dim=1)
        if not bool(bad_b.any()):
            return scores
        for row in bad_b.nonzero()[:, 0].tolist():
            self.faults.setdefault(row, input_ids.shape[1] - self._prompt_width)
        ended = torch.full_like(scores[0], -torch.inf)
        ended[self._end_id] = 0.0
        return torch.where(bad_b.unsqueeze(1), ended, scores)


@contextlib.contextmanager
def _without_model_defaults(model: TokenModel, config: GenerationConfig) -> Iterator[None]:
    """A checkpoint's own sampling defaults (a repetition penalty, say) must not fill what ``config`` leaves open."""
    own = model.module.generation_config
    model.module.generation_config = config
    try:
        yield
    finally:
        model.module.generation_config = own


def evaluate(
    model: TokenModel, benchmarks: Mapping[str, Sequence[Prompt]], config: Config, *, step: int, folder: Path
) -> dict[str, Any]:
    """avg@k of every benchmark and their equal-weight average, with the same decoding and seeds at every step.

    Args:
        model: the student.
        benchmarks: encoded problems by benchmark name.
        config: the decoding.
        step: training step, 0 before training.
        folder: run folder; it keeps every sample.

    Raises:
        ScoreError: naming the sample whose logits are not finite; what was drawn is then under ``failure/``.
    """
    started = time.perf_counter()
    settings = config.evaluation
    decoding = Decoding(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens)
    samples: list[Sample] = []
    for name, prompts in benchmarks.items():
        repeated = [prompt for prompt in prompts for _ in range(settings.samples)]
        seed = derive(settings.seed, "evaluation", name)
        drawn = draw(model, repeated, decoding, seed=seed, microbatch=config.rollout.microbatch_responses)
        for index, (prompt, response) in enumerate(zip(repeated, drawn.responses, strict=True)):
            checked = check_response(response.text, prompt.problem.answer)
            samples.append(
                Sample(
                    benchmark=name,
                    problem=prompt.problem.id,
                    sample=index % settings.samples,
                    question=prompt.problem.question,
                    answer=prompt.problem.answer,
                    response=response.text,
                    extracted=checked.extracted,
                    verdict=checked.verdict.value,
                    tokens=len(response.token_ids),
                    truncated=response.truncated,
                    token_ids=list(response.token_ids),
                )
            )
        if drawn.fault is not None:
            where = f"step {step}, benchmark {name}, problem {drawn.fault.problem}, row {drawn.fault.row}"
            error = drawn.fault.error(model, where)
            replace_file(folder / FAILURE / SAMPLES, sample_lines(samples))
            write_failure(folder, step, error, sample=where, command=None)
            raise error
    write_samples(folder, step, samples)
    seconds = round(time.perf_counter() - started, 3)
    return summarise(samples, step=step, seconds=seconds)
