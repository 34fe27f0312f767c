"""Samples responses: for a training step, and for avg@k inside the loop.

Every random stream is a function of seed and sample, so a resumed run draws what it would have drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.config.schema import Config
from nemo_uecr.errors import ScoreError
from nemo_uecr.evaluation.decode import NOT_FINITE, decode
from nemo_uecr.evaluation.engines import Decoding
from nemo_uecr.evaluation.runner import sample_seed
from nemo_uecr.evaluation.samples import SAMPLES, Sample, sample_lines, summarise, write_samples
from nemo_uecr.files import replace_file
from nemo_uecr.local.batch import FAILURE, write_failure
from nemo_uecr.local.models import TokenModel
from nemo_uecr.local.sequences import Prompt, Response
from nemo_uecr.verifier.pool import check_response


@dataclass(frozen=True)
class Fault:
    """A token that could not be drawn: the logits at token ``token`` of response ``row`` were not finite."""

    row: int
    token: int

    def error(self, model: TokenModel, where: str) -> ScoreError:
        """The error to stop with; ``where`` names the sample."""
        return ScoreError(
            f"the {model.name} gives logits that are not finite while it answers ({where}) at token {self.token}; "
            "expected finite numbers. Check its weights, or lower train.learning_rate if training began well"
        )


def draw(
    model: TokenModel, prompts: Sequence[Prompt], seeds: Sequence[int], decoding: Decoding, *, microbatch: int
) -> tuple[list[Response], Fault | None]:
    """One response for each prompt, and the first fault.

    Args:
        model: the policy.
        prompts: one entry a response; repeat a prompt to sample it again.
        seeds: one a response, which fixes its draws.
        decoding: how to draw.
        microbatch: responses sampled at once.

    Returns:
        The responses; one with a fault ends there, with an end token that was not drawn.
    """
    responses: list[Response] = []
    fault = None
    for start in range(0, len(prompts), microbatch):
        rows = slice(start, start + microbatch)
        with model.forward_context(keep_casts=True):
            chunk = [prompt.token_ids for prompt in prompts[rows]]
            drawn = decode(model.module, model.tokens, chunk, seeds[rows], decoding)
        for ids in drawn:
            if ids[-1] == NOT_FINITE:
                fault = fault or Fault(len(responses), len(ids) - 1)
                ids[-1] = min(model.tokens.end_ids)
            finished = model.tokens.finished(ids, decoding.stop)
            responses.append(Response(tuple(ids), model.tokens.text(ids), truncated=not finished))
    return responses, fault


#: One response for each prompt, and the first fault: prompts, seeds, how to draw.
Sampler = Callable[[Sequence[Prompt], Sequence[int], Decoding], tuple[list[Response], Fault | None]]


def evaluate(
    model: TokenModel,
    sample: Sampler,
    benchmarks: Mapping[str, Sequence[Prompt]],
    config: Config,
    *,
    step: int,
    folder: Path,
) -> dict[str, Any]:
    """avg@k of every benchmark and their equal-weight average, with the same decoding and seeds at every step.

    Args:
        model: the student.
        sample: draws its responses.
        benchmarks: encoded problems by benchmark name.
        config: the decoding.
        step: training step, 0 before training.
        folder: run folder; it keeps every sample.

    Raises:
        ScoreError: naming the sample whose logits are not finite; what was drawn is then under ``failure/``.
    """
    started = time.perf_counter()
    settings = config.evaluation
    decoding = Decoding(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens, settings.stop)
    wanted = [
        (name, prompt, number)
        for name, prompts in benchmarks.items()
        for prompt in prompts
        for number in range(settings.samples)
    ]
    prompts = [prompt for _, prompt, _ in wanted]
    seeds = [sample_seed(settings.seed, (name, prompt.problem.id, number)) for name, prompt, number in wanted]
    responses, fault = sample(prompts, seeds, decoding)
    samples = []
    for (name, prompt, number), response in zip(wanted, responses, strict=True):
        checked = check_response(response.text, prompt.problem.answer)
        samples.append(
            Sample(
                benchmark=name,
                problem=prompt.problem.id,
                sample=number,
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
    if fault is not None:
        name, prompt, number = wanted[fault.row]
        where = f"step {step}, benchmark {name}, problem {prompt.problem.id}, sample {number}"
        error = fault.error(model, where)
        replace_file(folder / FAILURE / SAMPLES, sample_lines(samples))
        write_failure(folder, step, error, sample=where, command=None)
        raise error
    write_samples(folder, step, samples)
    seconds = round(time.perf_counter() - started, 3)
    return summarise(samples, step=step, seconds=seconds)
