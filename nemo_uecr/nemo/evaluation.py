"""avg@k of each benchmark during a NeMo-RL run, at a fixed decoding, in the place of NeMo-RL's validation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.data.benchmarks import LoadedBenchmark, load_benchmark
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.engines import ChatSettings, Decoding, Engine, Generation, Request, Tokens, load_tokens
from nemo_uecr.evaluation.runner import Wanted, judged, sample_seed
from nemo_uecr.evaluation.samples import Evaluation, Key, Sample, summarise, write_samples
from nemo_uecr.nemo.run_folder import EVALUATIONS
from nemo_uecr.telemetry.sinks import append_record
from nemo_uecr.verifier.pool import comparison_pool

log = logging.getLogger(__name__)

#: Builds the engine from NeMo-RL's generation object and the token ids that end a response.
EngineFactory = Callable[[Any, frozenset[int]], Engine]


@dataclass(frozen=True)
class TrainingEvaluation:
    """Everything that stays the same from one evaluation of a run to the next."""

    config: NemoConfig
    tokens: Tokens
    wanted: tuple[Wanted, ...]
    engine_of: EngineFactory

    def __call__(self, generation: Any, step: int) -> tuple[dict[str, float], dict[str, float]]:
        """Evaluate the policy that the generation workers hold.

        Args:
            generation: NeMo-RL's generation object, awake.
            step: completed training steps.

        Returns:
            What NeMo-RL logs under ``validation`` and under ``timing/validation``.
        """
        settings, folder = self.config.evaluation, Path(self.config.run.folder)
        started = time.perf_counter()
        decoding = Decoding(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens)
        engine = self.engine_of(generation, self.tokens.end_ids)
        found = engine.generate([each.request for each in self.wanted], decoding)
        samples = self._judged(found)
        seconds = round(time.perf_counter() - started, 3)
        write_samples(folder, step, samples)
        made = summarise(samples, step=step, bootstrap=settings.bootstrap, seed=settings.seed, seconds=seconds)
        append_record(folder / EVALUATIONS, made.record)
        log.info("step %d: avg@%d %.2f%%", step, settings.samples, 100 * made.average.avg)
        return _metrics(made, samples), {"total_validation_time": seconds}

    def _judged(self, found: list[Generation]) -> list[Sample]:
        with comparison_pool(self.config.data.verifier_workers) as pool:
            return judged(self.wanted, found, self.tokens, pool)


def training_evaluation(config: NemoConfig, engine_of: EngineFactory) -> TrainingEvaluation | None:
    """The run's evaluation; None when no benchmark is named.

    Raises:
        DataError: a benchmark cannot be read, or a prompt is longer than ``data.max_prompt_tokens``.
    """
    if not config.evaluation.benchmarks:
        return None
    tokens = load_tokens(config.student.model_name)
    loaded = {name: load_benchmark(f"{name}={file}") for name, file in config.evaluation.benchmarks.items()}
    return TrainingEvaluation(config, tokens, tuple(_wanted(config, tokens, loaded)), engine_of)


def _wanted(config: NemoConfig, tokens: Tokens, loaded: Mapping[str, LoadedBenchmark]) -> list[Wanted]:
    settings, data = config.evaluation, config.data
    chat = ChatSettings(data.prompt_template, None, data.enable_thinking)
    found = []
    for name, benchmark in loaded.items():
        for problem in benchmark.problems:
            prompt = tokens.prompt(problem.question, chat)
            if len(prompt) > data.max_prompt_tokens:
                raise DataError(
                    f"evaluation.benchmarks.{name}: problem {problem.id} has {len(prompt)} prompt tokens; expected at "
                    f"most data.max_prompt_tokens={data.max_prompt_tokens}. Raise it, or leave the problem out"
                )
            for number in range(settings.samples):
                key: Key = (name, problem.id, number)
                found.append(Wanted(key, problem, Request(prompt, sample_seed(settings.seed, key))))
    return found


def _metrics(made: Evaluation, samples: list[Sample]) -> dict[str, float]:
    """NeMo-RL's logger wants numbers; it also reads ``accuracy`` for its checkpoints."""
    sets: Any = made.record["sets"]
    k = made.record["samples"]
    named = {f"{name}/avg@{k}": float(row["avg"]) for name, row in sets.items()}
    named |= {f"{name}/pass@{k}": float(row["pass"]) for name, row in sets.items()}
    truncated = sum(sample.truncated for sample in samples) / len(samples)
    return {"accuracy": made.average.avg, f"average/avg@{k}": made.average.avg, "truncated_share": truncated, **named}
