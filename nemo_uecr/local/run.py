"""Loads what a run needs, prepares its folder, and hands over to the trainer."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from nemo_uecr.config.load import flat_values
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import RunFolderError
from nemo_uecr.generation.adapter import add_adapter, freeze_routers, load_adapter
from nemo_uecr.generation.conversation import Dialogue
from nemo_uecr.generation.decode import check_cache
from nemo_uecr.generation.engines import check_trainable, missing_end_token
from nemo_uecr.generation.environments import Environment
from nemo_uecr.local.ahead import load_ahead
from nemo_uecr.local.checkpoint import Checkpoints, Position
from nemo_uecr.local.episodes import dialogue_of
from nemo_uecr.local.failure import FAILURE
from nemo_uecr.local.memory import Placement, checkpointed_layers, is_offloaded, state_of
from nemo_uecr.local.provenance import (
    APPEND_ONLY,
    ARTIFACTS,
    DIFF,
    check_same_inputs,
    input_hashes,
    list_files,
    prompt_hashes,
    write_run_files,
)
from nemo_uecr.local.rollout import Drawn, Sampler, draw, step_prompts
from nemo_uecr.local.sequences import Prompt, check_context, encoded_problems
from nemo_uecr.local.teachers import PROBES, load_teachers
from nemo_uecr.local.token_model import TokenModel, load_model
from nemo_uecr.local.trainer import Models, Trainer
from nemo_uecr.local.update import build_optimizer
from nemo_uecr.local.vllm_sampler import VllmSampler
from nemo_uecr.paths import resolve_path
from nemo_uecr.reproducible import derive
from nemo_uecr.stopping import StopRequest
from nemo_uecr.telemetry.sinks import Progress, StepLog, open_clients, truncate_records
from nemo_uecr.verifier.rewards import Rewards, refuse_the_step

log = logging.getLogger(__name__)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A block that writes a run folder; what the system refuses is one line that says what is left."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"cannot write {error.filename or folder}: {error.strerror or error}; complete checkpoints are intact. "
            "Make room or choose another run.folder, then run again with --resume"
        ) from error


def train(
    config: Config,
    *,
    resume: bool,
    origins: Mapping[str, str],
    stop: StopRequest,
    rewards: Rewards,
    environment: Environment | None,
    warnings: Sequence[str],
) -> None:
    """Load a run that has been checked (`start`), and train to its last step; asked by ``stop`` it saves and raises.

    ``resume`` continues from the newest checkpoint; ``origins``, where each value came from, and the ``warnings`` of
    the checks are for the run folder.
    """
    folder = Path(config.run.folder)
    _set_up_torch(config)
    log.info("%s: loading models and problems", folder)
    checkpoints = Checkpoints(folder / "checkpoints", config)
    position = _position(checkpoints, folder, resume=resume)
    saved = checkpoints.path(position.step) if position.step else None
    models = load_models(config, saved, () if environment is None else environment.tools)
    dialogue = dialogue_of(config, environment, models.student.tokens)
    prompts, benchmarks = readable_prompts(config, models, dialogue)
    columns = sorted({name for prompt in prompts for name in prompt.problem.columns})
    rewards.check_columns(columns)
    if environment is not None:
        environment.check_columns(columns)
    if config.rollout.lag:
        refuse_the_step(rewards.readers_of_the_step, "rollout.lag=0")
    # After loading: a model of the hub is then on this machine.
    inputs = input_hashes(config) | prompt_hashes(prompts, benchmarks)
    check_same_inputs(folder, inputs)
    optimizer = build_optimizer(models.student, config)
    ahead: dict[int, Drawn] = {}
    if saved is not None:
        optimizer.load_state_dict(checkpoints.optimizer_state(position.step))
        if config.rollout.lag:
            ahead = load_ahead(saved, lambda step: step_prompts(prompts, config, step))
        checkpoints.prune(position)
        state = "resuming" if position.step < config.train.steps else "already complete"
        log.info("%s after step %d of %d: %s", state, position.step, config.train.steps, saved)
    sample = sampler_of(config, models.student, prompts, benchmarks)  # tries a model that is whole yet
    placement = placement_of(config, models, optimizer)
    clients = open_clients(folder, config.telemetry, flat_values(config))
    progress = Progress(total=config.train.steps, style=config.telemetry.progress)
    # Everything is there: from here on the folder is written.
    _drop_what_followed(folder, position)
    write_run_files(folder, config, origins=origins, inputs=inputs, warnings=warnings)
    models.teachers.keep_probes(folder)
    list_files(folder, position.step, "config.yaml", "origins.json", DIFF, PROBES)
    Trainer(
        config, models=models, optimizer=optimizer, placement=placement, sample=sample, rewards=rewards,
        prompts=prompts, benchmarks=benchmarks, folder=folder, log=StepLog(folder, clients, progress),
        checkpoints=checkpoints, position=position, ahead=ahead, stop=stop, dialogue=dialogue,
    ).run()  # fmt: skip


def _set_up_torch(config: Config) -> None:
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.train.deterministic:  # read when the GPU first multiplies
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _position(checkpoints: Checkpoints, folder: Path, *, resume: bool) -> Position:
    """Where the run begins: after its newest checkpoint, or at step 0, also where a resumed run left none."""
    if resume and checkpoints.steps():
        return checkpoints.load(checkpoints.steps()[-1])
    if resume:  # no refusal: a job that is requeued early finds no checkpoint either
        log.info("%s has no checkpoint to resume from: a new run begins", folder)
    (folder / PROBES).unlink(missing_ok=True)  # of an attempt that left no checkpoint
    return Position()


def _drop_what_followed(folder: Path, position: Position) -> None:
    """Drop what an earlier attempt recorded after this position, and set its failure aside."""
    if position.step == 0:  # it left no checkpoint
        for record in folder.glob("provenance*.json"):
            record.unlink()
    for name in (*APPEND_ONLY, ARTIFACTS):
        truncate_records(folder / name, last_step=position.step or -1)
    failure = folder / FAILURE
    if failure.exists():
        number = 1 + sum(1 for _ in folder.glob(f"{FAILURE}-*"))
        failure.rename(folder / f"{FAILURE}-{number}")


def load_models(config: Config, checkpoint: Path | None, tools: Sequence[Mapping[str, Any]]) -> Models:
    """The models that the run reads, the student as a checkpoint holds it where one is given.

    ``tools`` of an environment are in the prompts of a teacher that has its own.
    """

    def device(member: str) -> torch.device:
        return torch.device("cpu") if is_offloaded(config.offload, member) else _device(config.device)

    student = _student(config, checkpoint, device("student"))  # what is offloaded waits in host memory from the start

    @cache
    def initial() -> TokenModel:
        """The student before training, also after a resume."""
        if config.student.lora_rank:
            return student.base()
        copy = replace(_student(config, None, device("reference")), member="reference")
        copy.module.requires_grad_(False)
        return copy

    if fault := missing_end_token(student.tokenizer, student.tokens.end_ids, config.rollout.stop):
        log.warning("student: %s", fault)
    teachers = load_teachers(config, student, initial, device, tools)
    read = config.loss.reference_kl > 0 or "initial_logp" in config.method.reads
    return Models(student, teachers, initial() if read else None)


def _student(config: Config, checkpoint: Path | None, device: torch.device) -> TokenModel:
    asked, training = config.student, config.train
    initial = resolve_path(asked.model_name)
    check_trainable(initial)
    weights = initial if checkpoint is None or asked.lora_rank else str(checkpoint)
    master = not asked.lora_rank and training.optimizer != "adamw8bit_sr"
    student = load_model(weights, role="student", dtype=asked.dtype, device=device, master_weights=master)
    if asked.lora_rank:
        seed = derive(config.run.seed, "adapter", 0)
        add_adapter(
            student.module, rank=asked.lora_rank, alpha=asked.lora_alpha, seed=seed, experts=asked.lora_experts,
            routers=not asked.freeze_moe_router,
        )  # fmt: skip
        if checkpoint is not None:
            load_adapter(student.module, checkpoint)
    elif asked.freeze_moe_router:
        freeze_routers(student.module)
    layers = checkpointed_layers(student.module) if training.activation_checkpointing else []
    return replace(student, recomputed=tuple(layers))


def sampler_of(
    config: Config, student: TokenModel, prompts: Sequence[Prompt], benchmarks: Mapping[str, Sequence[Prompt]]
) -> Sampler | VllmSampler:
    """What draws the student's responses."""
    if config.rollout.engine == "transformers":
        check_cache(student.module)
        return partial(draw, student, microbatch=config.rollout.microbatch_responses)
    limits = (
        (prompts, config.rollout.max_response_tokens),
        *((p, config.evaluation.max_tokens) for p in benchmarks.values()),
    )
    longest = max(len(prompt.token_ids) + limit for drawn, limit in limits for prompt in drawn)
    if config.environment is not None:  # which may show something below a question
        longest = max(config.data.max_prompt_tokens + limit for _, limit in limits)
    initial = resolve_path(config.student.model_name)
    return VllmSampler(student, initial, config, device=_device(config.device), max_length=longest)


def placement_of(config: Config, models: Models, optimizer: torch.optim.Optimizer | None) -> Placement:
    """Where the models and the optimizer, if there is one, wait and compute."""
    device, members = _device(config.device), {} if optimizer is None else {"optimizer": partial(state_of, optimizer)}
    for model in (models.student, *models.teachers.models, models.reference):
        if model is not None:  # with an adapter the reference is the student's member, too
            members[model.member] = model.module.parameters
            for buffer in model.module.buffers():  # a few kilobytes, and some models replace them in a forward
                buffer.data = buffer.data.to(device)
    return Placement(config.offload, device, members)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise RunFolderError("device is cuda, but torch sees no GPU; set device: auto or cpu")
    return torch.device(name)


def readable_prompts(
    config: Config, models: Models, dialogue: Dialogue | None
) -> tuple[list[Prompt], dict[str, list[Prompt]]]:
    """Encoded training problems and those of each benchmark, which every model that is here can read."""
    tools = () if dialogue is None else dialogue.chat.tools
    training, benchmarks = encoded_problems(config, models.student.tokenizer, resolve_path, tools)
    check_context(training, models.student, "rollout.max_response_tokens", config.rollout.max_response_tokens)
    if models.teachers.by_name:
        models.teachers.check(training, config.rollout.max_response_tokens)
    for questions in benchmarks.values():
        check_context(questions, models.student, "evaluation.max_tokens", config.evaluation.max_tokens)
    return training, benchmarks
