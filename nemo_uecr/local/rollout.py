"""Samples responses: for a training step, and for avg@k inside the loop.

Every random stream is a function of seed and sample, so a resumed run draws what it would have drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.config.schema import Config
from nemo_uecr.errors import ScoreError
from nemo_uecr.evaluation.runner import judge_generations, pending_samples
from nemo_uecr.evaluation.samples import SAMPLES, sample_lines, write_samples
from nemo_uecr.generation.decode import NOT_FINITE, decode
from nemo_uecr.generation.engines import Decoding
from nemo_uecr.local.failure import evidence_of_failure
from nemo_uecr.local.sequences import Prompt, Response
from nemo_uecr.local.token_model import TokenModel
from nemo_uecr.verifier.pool import SHARED

#: One response for each prompt: prompts, seeds, how to draw.
Sampler = Callable[[Sequence[Prompt], Sequence[int], Decoding], list[Response]]


def draw(
    model: TokenModel, prompts: Sequence[Prompt], seeds: Sequence[int], decoding: Decoding, *, microbatch: int
) -> list[Response]:
    """One response for each prompt, its draws fixed by its seed; ``microbatch`` are sampled at once."""
    responses: list[Response] = []
    for start in range(0, len(prompts), microbatch):
        rows = slice(start, start + microbatch)
        with model.forward_context(keep_casts=True):
            chunk = [prompt.token_ids for prompt in prompts[rows]]
            drawn = decode(model.module, model.tokens, chunk, seeds[rows], decoding)
        for ids in drawn:
            finite = ids[-1] != NOT_FINITE
            if not finite:
                ids[-1] = min(model.tokens.end_ids)
            finished = model.tokens.finished(ids, decoding.stop)
            responses.append(Response(tuple(ids), not finished, model.tokens.text(ids), finite))
    return responses


def check_drawn(responses: Sequence[Response], names: Sequence[str], model: TokenModel) -> None:
    """Refuse a response with a token that could not be drawn; ``names`` has each response's own."""
    for response, name in zip(responses, names, strict=True):
        if not response.finite:
            raise ScoreError(
                f"the {model.name} gives logits that are not finite while it answers ({name}) at token "
                f"{len(response.token_ids) - 1}; expected finite numbers. Check its weights, or lower "
                "train.learning_rate if training began well"
            )


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

    The run folder keeps every sample, under ``failure/`` where the logits of one are not finite. Step 0 is before
    training.
    """
    started = time.perf_counter()
    settings = config.evaluation
    decoding = Decoding(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens, settings.stop)
    encoded = {name: [(each.problem, each.token_ids) for each in prompts] for name, prompts in benchmarks.items()}
    pending = pending_samples(encoded, samples=settings.samples, seed=settings.seed)
    prompts = [Prompt(each.problem, each.request.prompt_ids) for each in pending]
    responses = sample(prompts, [each.request.seed for each in pending], decoding)
    samples = judge_generations(pending, responses, model.tokens, SHARED)
    with evidence_of_failure(folder, step) as evidence:
        names = ["step {}, benchmark {}, problem {}, sample {}".format(step, *each.key) for each in pending]
        evidence.file(SAMPLES, lambda: sample_lines(samples), names)
        check_drawn(responses, names, model)
    return write_samples(folder, step, samples, started=started)
