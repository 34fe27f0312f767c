"""avg@k inside the loop: the same problems, decoding and seeds at every evaluation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_uecr.config.schema import Config, EvaluationConfig
from nemo_uecr.data.reproducible import derive
from nemo_uecr.evaluation.engines import Decoding
from nemo_uecr.evaluation.samples import Evaluation, Sample, summarise, write_samples
from nemo_uecr.local.failure import leave_evaluation_failure
from nemo_uecr.local.models import TokenModel
from nemo_uecr.local.prompts import Prompt
from nemo_uecr.local.rollout import Fault, draw
from nemo_uecr.verifier.pool import check_response


def evaluate(
    model: TokenModel, benchmarks: Mapping[str, Sequence[Prompt]], config: Config, *, step: int, folder: Path
) -> Evaluation:
    """avg@k of every benchmark and their equal-weight average; every sample is kept in ``folder``.

    Args:
        model: the student.
        benchmarks: encoded problems by benchmark name.
        config: the decoding and the bootstrap.
        step: training step, 0 before training.
        folder: run folder.

    Raises:
        ScoreError: naming the sample whose logits are not finite; what was drawn is then under ``failure/``.
    """
    started = time.perf_counter()
    settings = config.evaluation
    samples: list[Sample] = []
    for name, prompts in benchmarks.items():
        found, fault = _benchmark(model, name, prompts, settings, config.rollout.microbatch_responses)
        samples += found
        if fault is not None:
            where = f"step {step}, benchmark {name}, problem {fault.problem}, row {fault.row}"
            error = fault.error(model, where)
            leave_evaluation_failure(folder, step, samples, sample=where, error=error)
            raise error
    write_samples(folder, step, samples)
    seconds = round(time.perf_counter() - started, 3)
    return summarise(samples, step=step, bootstrap=settings.bootstrap, seed=settings.seed, seconds=seconds)


def _benchmark(
    model: TokenModel, name: str, prompts: Sequence[Prompt], settings: EvaluationConfig, microbatch: int
) -> tuple[list[Sample], Fault | None]:
    decoding = Decoding(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens)
    repeated = [prompt for prompt in prompts for _ in range(settings.samples)]
    seed = derive(settings.seed, "evaluation", name)
    drawn = draw(model, repeated, decoding, seed=seed, microbatch=microbatch)
    found: list[Sample] = []
    for index, (prompt, response) in enumerate(zip(repeated, drawn.responses, strict=True)):
        checked = check_response(response.text, prompt.problem.answer)
        found.append(
            Sample(
                name,
                prompt.problem.id,
                index % settings.samples,
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
    return found, drawn.fault
