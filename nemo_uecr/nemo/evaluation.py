"""avg@k of each benchmark during a NeMo-RL run, at a fixed decoding, beside NeMo-RL's own validation.

The run's own vLLM engines answer. NeMo-RL's call of them samples with the settings of training and without seeds; here
every request has its seed, so that each evaluation draws on the same random numbers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_uecr.config.load import value_at
from nemo_uecr.config.schema import EvaluationConfig
from nemo_uecr.data.problems import problems_of
from nemo_uecr.evaluation.runner import judge_generations, pending_samples
from nemo_uecr.evaluation.samples import write_samples
from nemo_uecr.generation.engines import Decoding, Generation, Request, generate_with, load_tokens
from nemo_uecr.generation.prompts import fitting_prompts
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.recipe import Settings, set_at
from nemo_uecr.telemetry.sinks import EVALUATIONS, append_record
from nemo_uecr.verifier.pool import comparison_pool

log = logging.getLogger(__name__)

#: Metrics and timings of a generation object after a number of steps, as NeMo-RL's validation returns them.
Evaluate = Callable[[Any, int], tuple[dict[str, float], dict[str, float]]]


@dataclass(frozen=True)
class Schedule:
    """When the loop validates: as the recipe says, and as ours says; at a time of both, both run."""

    settings: EvaluationConfig
    validates_at_start: bool  # the recipe's own
    last_step: int

    @classmethod
    def set(cls, config: Any, settings: EvaluationConfig, *, begins: bool) -> Schedule:
        """Set in NeMo-RL's configuration when its loop validates; after the set-up, which would ask for its own data.

        Args:
            config: NeMo-RL's, as its set-up has completed it.
            settings: when ours runs.
            begins: whether no checkpoint is continued; the loop takes the first step of any epoch for the start.
        """
        theirs = bool(value_at(config, "grpo.val_at_start"))
        steps = [value_at(config, "grpo.max_num_steps")]
        if not value_at(config, "data.use_multiple_dataloader"):  # with several loaders an epoch has no end
            steps.append(value_at(config, "policy.megatron_cfg.train_iters"))
        if not value_at(config, "grpo.val_period"):
            set_at(config, "grpo.val_period", settings.every)
        set_at(config, "grpo.val_at_start", theirs or (settings.at_start and begins))
        set_at(config, "grpo.val_at_end", True)
        return cls(settings, theirs, min(steps))

    def due(self, step: int) -> bool:
        """Whether ours runs after so many steps."""
        if step == 0:
            return self.settings.at_start
        return step == self.last_step or (self.settings.every > 0 and step % self.settings.every == 0)


def beside_validation(
    validate: Callable[..., Any], evaluate: Evaluate | None, schedule: Schedule | None, *, own_rewards: bool
) -> Callable[..., Any]:
    """NeMo-RL's ``validate``, and ours where it is due.

    Theirs runs wherever the recipe has validation data, so that one metric is the same quantity at each checkpoint.
    What it asks of our environment is not among the rewards of a step.
    """

    def both(generation: Any, val_dataloader: Any, *args: Any, step: int, **given: Any) -> Any:
        metrics: dict[str, float] = {}
        timings: dict[str, float] = {}
        if evaluate is not None and schedule is not None and schedule.due(step):
            metrics, timings = evaluate(generation, step)
            if val_dataloader is not None:  # by this name the loop keeps the recipe's own measure
                metrics = {name: value for name, value in metrics.items() if name != "accuracy"}
        if val_dataloader is not None and (step > 0 or schedule is None or schedule.validates_at_start):
            theirs, seconds = validate(generation, val_dataloader, *args, step=step, **given)
            metrics, timings = {**metrics, **theirs}, {**timings, **seconds}
            if own_rewards:
                upstream.components()
        return metrics, timings

    return both


def training_evaluation(settings: Settings) -> Evaluate | None:
    """The run's evaluation of NeMo-RL's generation object after a number of steps; None when no benchmark is named."""
    asked = settings.evaluation
    if asked is None:
        return None
    data: Any = settings.data  # which the section asks for
    tokens, encoded = load_tokens(settings.model_name), {}
    for name, given in asked.benchmarks.items():
        problems = problems_of(data, given, f"evaluation.benchmarks.{name}")
        prompts = fitting_prompts(tokens.tokenizer, problems, data, name)
        encoded[name] = [(problems[place], tuple(ids)) for place, ids in prompts.items()]
    pending = pending_samples(encoded, samples=asked.samples, seed=asked.seed)
    decoding = Decoding(asked.temperature, asked.top_p, asked.top_k, asked.max_tokens, asked.stop)

    def evaluate(generation: Any, step: int) -> tuple[dict[str, float], dict[str, float]]:
        started = time.perf_counter()
        workers, requests = upstream.generation_leaders(generation), [each.request for each in pending]
        answers = answers_of(workers, requests, decoding, tokens.end_ids, seconds=settings.timeout_s)
        with comparison_pool(settings.verifier_workers) as pool:
            rows, columns = judge_generations(pending, answers, tokens, pool, checkpoint=step)
        made = write_samples(settings.folder, step, rows, columns, started=started)
        append_record(settings.folder / EVALUATIONS, made)
        log.info("step %d: avg@%d %.2f%%", step, asked.samples, 100 * made["average"]["avg"])
        truncated = sum(rows["truncated"]) / len(pending)
        return _metrics(made) | {"truncated_share": truncated}, {"total_evaluation_time": made["seconds"]}

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
