"""avg@k of each benchmark during a NeMo-RL run, at a fixed decoding, in the place of NeMo-RL's validation.

The run's own vLLM engines answer. NeMo-RL's call of them samples with the settings of training and without seeds; here
every request has its seed, so that each evaluation draws on the same random numbers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.data.problems import problems_of
from nemo_uecr.evaluation.runner import judge_generations, pending_samples
from nemo_uecr.evaluation.samples import write_samples
from nemo_uecr.generation.engines import Decoding, Generation, Request, generate_with, load_tokens
from nemo_uecr.generation.models import fitting_prompts
from nemo_uecr.nemo import upstream
from nemo_uecr.telemetry.sinks import EVALUATIONS, append_record
from nemo_uecr.verifier.pool import comparison_pool

log = logging.getLogger(__name__)


def training_evaluation(config: NemoConfig) -> upstream.Evaluate | None:
    """The run's evaluation of NeMo-RL's generation object after a number of steps; None when no benchmark is named."""
    settings, folder = config.evaluation, Path(config.run.folder)
    if not settings.benchmarks:
        return None
    tokens, encoded = load_tokens(config.student.model_name), {}
    for name, given in settings.benchmarks.items():
        problems = problems_of(config.data, given, f"evaluation.benchmarks.{name}")
        prompts = fitting_prompts(tokens.tokenizer, problems, config.data, name)
        encoded[name] = [(problems[place], tuple(ids)) for place, ids in prompts.items()]
    pending = pending_samples(encoded, samples=settings.samples, seed=settings.seed)
    decoding = Decoding(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens, settings.stop)

    def evaluate(generation: Any, step: int) -> tuple[dict[str, float], dict[str, float]]:
        started = time.perf_counter()
        workers, requests = upstream.generation_leaders(generation), [each.request for each in pending]
        answers = answers_of(workers, requests, decoding, tokens.end_ids, seconds=config.scoring.timeout_s)
        with comparison_pool(config.data.verifier_workers) as pool:
            samples = judge_generations(pending, answers, tokens, pool)
        made = write_samples(folder, step, samples, started=started)
        append_record(folder / EVALUATIONS, made)
        log.info("step %d: avg@%d %.2f%%", step, settings.samples, 100 * made["average"]["avg"])
        truncated = sum(sample.truncated for sample in samples) / len(samples)
        return _metrics(made) | {"truncated_share": truncated}, {"total_validation_time": made["seconds"]}

    return evaluate


def answers_of(
    workers: Sequence[tuple[str, Any]],
    requests: Sequence[Request],
    decoding: Decoding,
    end_ids: frozenset[int],
    *,
    seconds: float,
) -> list[Generation]:
    """One generation per request, in order; request i goes to worker i modulo their number.

    ``workers`` are the name and Ray actor of each vLLM engine's first worker; they have so many seconds for it all.
    """
    used = workers[: len(requests)]
    futures = [
        actor.__ray_call__.remote(_answer_in_worker, requests[place :: len(used)], decoding, end_ids)
        for place, (_, actor) in enumerate(used)
    ]
    answers = upstream.wait("generate for evaluation", futures, [name for name, _ in used], seconds=seconds)
    return [answers[place % len(used)][place // len(used)] for place in range(len(requests))]


def _answer_in_worker(
    worker: Any, requests: Sequence[Request], decoding: Decoding, end_ids: frozenset[int]
) -> list[Generation]:
    return generate_with(worker.llm, requests, decoding, end_ids, lora=None)


def _metrics(made: dict[str, Any]) -> dict[str, float]:
    """NeMo-RL's logger wants numbers; it also reads ``accuracy`` for its checkpoints."""
    sets, k, average = made["sets"], made["samples"], made["average"]["avg"]
    named = {f"{name}/avg@{k}": float(row["avg"]) for name, row in sets.items()}
    named |= {f"{name}/pass@{k}": float(row["pass"]) for name, row in sets.items()}
    return {"accuracy": average, f"average/avg@{k}": average, **named}
