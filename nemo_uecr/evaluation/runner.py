"""Runs an evaluation: k samples a problem, written as they come, resumed after a kill."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.data.benchmarks import LoadedBenchmark
from nemo_uecr.data.problems import Problem
from nemo_uecr.data.reproducible import derive
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation import engines
from nemo_uecr.evaluation.engines import Engine, Generation, Request, Tokens
from nemo_uecr.evaluation.samples import (
    SAMPLES,
    Key,
    Sample,
    drop_torn_line,
    read_samples,
    sample_lines,
    write_result,
)
from nemo_uecr.evaluation.settings import SETTINGS, Settings, check_same_settings, settings_record
from nemo_uecr.files import append_whole, locked, replace_file
from nemo_uecr.stopping import note_progress
from nemo_uecr.verifier.pool import ComparisonPool, check_responses, comparison_pool

log = logging.getLogger(__name__)

#: Seconds to wait for a folder: the system takes a moment to release the lock of a killed evaluation.
LOCK_WAIT = 5.0
#: Builds an engine for a model, given its tokens and the longest prompt.
EngineFactory = Callable[[str, Settings, Tokens, int], Engine]


@dataclass(frozen=True)
class Wanted:
    """One sample that is still to be generated."""

    key: Key
    problem: Problem
    request: Request


def evaluate(
    label: str,
    model: str,
    benchmarks: Mapping[str, LoadedBenchmark],
    settings: Settings,
    folder: Path,
    engine_of: EngineFactory | None = None,
) -> dict[str, Any]:
    """Evaluate one model into a folder; samples that are already there are kept and not repeated.

    Args:
        label: what tables call the model.
        model: folder or hub name.
        benchmarks: problems by benchmark name.
        settings: decoding, k, engine.
        folder: output folder.
        engine_of: how to build the engine; None builds the one that the settings name.

    Returns:
        The result, as in ``result.json``.
    """
    check_settings(settings)
    if engine_of is None:
        engines.check_engine(settings.engine)
    with locked(folder, wait=LOCK_WAIT):
        record = settings_record(label, model, settings, benchmarks)
        path = folder / SAMPLES
        drop_torn_line(path)
        there = read_samples(path) if path.exists() else []
        if there:
            check_same_settings(folder, record)
        done = {sample.key for sample in there}
        tokens = engines.load_tokens(model)
        wanted = [each for each in _wanted(benchmarks, settings, tokens) if each.key not in done]
        log.info("%s: %d samples there, %d to generate", label, len(done), len(wanted))
        if wanted:
            # Prompts of similar length together: one long prompt pads all the others of its batch.
            wanted.sort(key=lambda each: len(each.request.prompt_ids))
            longest = max(len(each.request.prompt_ids) for each in wanted)
            engine = (engine_of or build_engine)(model, settings, tokens, longest)
            if not there:  # only now, so that a model that cannot be loaded leaves no settings behind
                replace_file(folder / SETTINGS, json.dumps(record, indent=1).encode())
            _generate(wanted, engine, settings, tokens, path)
        return write_result(folder, record, read_samples(path))


def check_settings(settings: Settings) -> None:
    """Refuse settings that contradict each other.

    Raises:
        DataError: Several samples of greedy decoding would all be equal.
    """
    if settings.decoding.temperature == 0 and settings.samples > 1:
        raise DataError(f"greedy decoding gives {settings.samples} equal samples; use --samples 1 or a temperature > 0")


def build_engine(model: str, settings: Settings, tokens: Tokens, longest_prompt: int) -> Engine:
    """The engine that the settings name."""
    length = longest_prompt + settings.decoding.max_tokens
    if settings.engine == "vllm":
        return engines.VllmEngine(model, tokens, dtype=settings.dtype, max_length=length)
    return engines.TransformersEngine(model, tokens, dtype=settings.dtype, max_length=length)


def sample_seed(seed: int, key: Key) -> int:
    """A sample's own seed: a function of what it is, not of what ran before it."""
    return derive(seed, *key)


def _wanted(benchmarks: Mapping[str, LoadedBenchmark], settings: Settings, tokens: Tokens) -> Iterator[Wanted]:
    for name, benchmark in benchmarks.items():
        for problem in benchmark.problems:
            prompt = tokens.prompt(problem.question, settings.chat)
            for number in range(settings.samples):
                key = (name, problem.id, number)
                yield Wanted(key, problem, Request(prompt, sample_seed(settings.seed, key)))


def _generate(wanted: list[Wanted], engine: Engine, settings: Settings, tokens: Tokens, path: Path) -> None:
    began, produced = time.perf_counter(), 0
    with comparison_pool(min(4, os.cpu_count() or 1)) as pool:
        for start in range(0, len(wanted), settings.batch):
            chunk = wanted[start : start + settings.batch]
            generations = engine.generate([each.request for each in chunk], settings.decoding)
            append_whole(path, sample_lines(judged(chunk, generations, tokens, pool)))
            note_progress()
            produced += sum(len(each.token_ids) for each in generations)
            rate = produced / (time.perf_counter() - began)
            log.info("%d of %d samples, %.0f tokens a second", start + len(chunk), len(wanted), rate)


def judged(
    chunk: Sequence[Wanted], generations: Sequence[Generation], tokens: Tokens, pool: ComparisonPool
) -> list[Sample]:
    """The samples of generations, each with the verifier's verdict."""
    texts = [tokens.text(generation.token_ids) for generation in generations]
    checked = check_responses(texts, [each.problem.answer for each in chunk], pool)
    return [
        Sample(
            *each.key,
            question=each.problem.question,
            answer=each.problem.answer,
            response=text,
            extracted=outcome.extracted,
            verdict=outcome.verdict.value,
            tokens=len(generation.token_ids),
            truncated=generation.truncated,
            token_ids=list(generation.token_ids),
        )
        for each, generation, text, outcome in zip(chunk, generations, texts, checked, strict=True)
    ]
