"""avg@k inside the loop: the same problems, decoding and seeds at every evaluation."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.config.schema import Config, EvaluationConfig
from nemo_uecr.data.atomic import replace_file
from nemo_uecr.evaluation.engines.base import Decoding
from nemo_uecr.evaluation.metrics import Interval, average_at_k, bootstrap_interval, pass_at_k
from nemo_uecr.local.models import TokenModel
from nemo_uecr.local.prompts import Prompt
from nemo_uecr.local.rollout import sample
from nemo_uecr.local.seeds import derive
from nemo_uecr.verifier.equivalence import check_response


@dataclass(frozen=True)
class Evaluation:
    """The record of one evaluation (a line of ``evaluation.jsonl``)."""

    record: dict[str, object]
    average: Interval


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
    """
    started = time.perf_counter()
    settings = config.evaluation
    rewards: dict[str, list[list[float]]] = {}
    lines: list[str] = []
    for name, prompts in benchmarks.items():
        rewards[name], rows = _benchmark(model, name, prompts, settings, config.rollout.microbatch_responses)
        lines.extend(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    replace_file(folder / "evaluations" / f"step-{step:06d}.jsonl", "".join(lines).encode())
    average = bootstrap_interval(rewards, resamples=settings.bootstrap, seed=settings.seed)
    sets = {name: _summary(rows, settings) for name, rows in rewards.items()}
    record = {
        "step": step,
        "samples": settings.samples,
        "sets": sets,
        "average": vars(average),
        "seconds": round(time.perf_counter() - started, 3),
    }
    return Evaluation(record, average)


def _benchmark(
    model: TokenModel, name: str, prompts: Sequence[Prompt], settings: EvaluationConfig, microbatch: int
) -> tuple[list[list[float]], list[dict[str, object]]]:
    decoding = Decoding(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens)
    repeated = [prompt for prompt in prompts for _ in range(settings.samples)]
    seed = derive(settings.seed, "evaluation", name)
    responses = sample(model, repeated, decoding, seed=seed, microbatch=microbatch)
    rewards: list[list[float]] = [[] for _ in prompts]
    rows: list[dict[str, object]] = []
    for index, (prompt, response) in enumerate(zip(repeated, responses, strict=True)):
        checked = check_response(response.text, prompt.problem.answer)
        rewards[index // settings.samples].append(checked.reward)
        rows.append(
            {
                "benchmark": name,
                "problem": prompt.problem.id,
                "sample": index % settings.samples,
                "question": prompt.problem.question,
                "answer": prompt.problem.answer,
                "response": response.text,
                "extracted": checked.extracted,
                "verdict": checked.verdict.value,
                "tokens": len(response.token_ids),
                "truncated": response.truncated,
                "token_ids": list(response.token_ids),
            }
        )
    return rewards, rows


def _summary(rewards: list[list[float]], settings: EvaluationConfig) -> dict[str, float]:
    interval = bootstrap_interval({"set": rewards}, resamples=settings.bootstrap, seed=settings.seed)
    return {
        "avg": average_at_k(rewards),
        "low": interval.low,
        "high": interval.high,
        "problems": len(rewards),
        "pass": pass_at_k(rewards),
    }
