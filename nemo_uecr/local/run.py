"""Prepares a run folder, loads what the run needs, and hands over to the trainer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch

from nemo_uecr.config.load import check_same_configuration, flat_values, written_config
from nemo_uecr.config.schema import Config, DataConfig
from nemo_uecr.core.methods import METHODS
from nemo_uecr.data.manifest import training_file
from nemo_uecr.data.problems import load_problems
from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import locked
from nemo_uecr.local.batch import FAILURE
from nemo_uecr.local.checkpoint import Checkpoints, Position, restore_optimizer
from nemo_uecr.local.manifest import (
    ARTIFACTS,
    DIFF,
    GROWING,
    Locate,
    check_same_inputs,
    input_hashes,
    list_files,
    write_run_files,
)
from nemo_uecr.local.models import check_same_tokens, load_model
from nemo_uecr.local.sequences import Prompt, check_context, encode_prompts
from nemo_uecr.local.trainer import Models, Trainer
from nemo_uecr.local.update import build_optimizer
from nemo_uecr.stopping import StopRequest
from nemo_uecr.telemetry.clients import open_clients
from nemo_uecr.telemetry.sinks import Progress, StepLog, truncate_records

log = logging.getLogger(__name__)


def train(
    config: Config,
    *,
    resume: bool,
    origins: Mapping[str, str],
    objective: str,
    locate: Locate,
    stop: StopRequest,
) -> Path:
    """Run a configuration to its last step.

    Args:
        config: the resolved configuration.
        resume: continue from the newest checkpoint in the run folder.
        origins: where each value came from, for the run folder.
        objective: the loss as one equation, for the run folder.
        locate: maps model and data names to what is on disk.
        stop: read after each step; when it is asked, the run saves and ends.

    Returns:
        The run folder.

    Raises:
        RunFolderError: If the folder is in use, holds a run that was not asked to be resumed, or cannot be written.
        RunStopped: If it was asked to end before its last step; a checkpoint of the step it reached is there.
    """
    folder = Path(config.run.folder)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    try:
        with locked(folder):
            _check_folder(folder, config, resume=resume)
            checkpoints = Checkpoints(folder / "checkpoints", config)
            start = checkpoints.load(checkpoints.steps()[-1]) if resume and checkpoints.steps() else None
            student = locate(config.student.model_name) if start is None else str(start[0])
            models = _models(config, student, locate)
            prompts, benchmarks = _problems(config, models, locate)
            inputs = input_hashes(config, locate)  # after loading: a model of the hub is then on this machine
            check_same_inputs(folder, inputs)
            optimizer = build_optimizer(models.student, config)
            position = Position(0, 0, None, None)
            if start is not None:
                restore_optimizer(optimizer, start[1])
                position = start[2]
                checkpoints.prune(position)
                log.info("resuming after step %d from %s", position.step, start[0])
            clients = open_clients(folder, config.telemetry, flat_values(config))
            progress = Progress(total=config.train.steps, style=config.telemetry.progress)
            write_run_files(folder, config, objective=objective, origins=origins, inputs=inputs)
            _retire_failure(folder)
            for name in (*GROWING, ARTIFACTS):
                truncate_records(folder / name, last_step=-1 if start is None else position.step)
            list_files(folder, position.step, "config.yaml", "origins.json", "tolerances.json", DIFF)
            trainer = Trainer(
                config,
                models=models,
                optimizer=optimizer,
                prompts=prompts,
                benchmarks=benchmarks,
                folder=folder,
                log=StepLog(folder, clients, progress),
                checkpoints=checkpoints,
                position=position,
                stop=stop,
            )
            trainer.run()
    except OSError as error:
        raise RunFolderError(
            f"cannot write {error.filename or folder}: {error.strerror or error}; complete checkpoints are intact. "
            "Make room or choose another run.folder, then run again with --resume"
        ) from error
    return folder


def _check_folder(folder: Path, config: Config, *, resume: bool) -> None:
    written = folder / "config.yaml"
    if not written.exists():
        return
    if not resume:
        raise RunFolderError(f"{folder} already holds a run; add --resume to continue it or choose another run.folder")
    check_same_configuration(written, config, written_config(written).model_dump(mode="json"))


def _retire_failure(folder: Path) -> None:
    """Keep what an earlier attempt left behind, under a name that no longer says that this run has failed."""
    failure = folder / FAILURE
    if failure.exists():
        number = 1 + sum(1 for _ in folder.glob(f"{FAILURE}-*"))
        failure.rename(folder / f"{FAILURE}-{number}")


def _models(config: Config, student_name: str, locate: Locate) -> Models:
    device = _device(config.device)
    student = load_model(student_name, role="student", dtype=config.student.dtype, device=device, trained=True)
    teacher = reference = None
    method = METHODS[config.method.name]
    if method.needs_teacher and config.teacher.model_name is not None:
        name, dtype = locate(config.teacher.model_name), config.teacher.dtype
        teacher = load_model(name, role="teacher", dtype=dtype, device=device, trained=False)
        check_same_tokens(student, teacher)
    if config.loss.reference_kl > 0 or method.needs_initial:  # the initial student, also after a resume
        name = locate(config.student.model_name)
        reference = load_model(name, role="student", dtype=config.student.dtype, device=device, trained=True)
    for frozen in (teacher, reference):
        if frozen is not None:
            frozen.module.requires_grad_(False)
    return Models(student, teacher, reference)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise RunFolderError("device is cuda, but torch sees no GPU; set device: auto or cpu")
    return torch.device(name)


def _problems(config: Config, models: Models, locate: Locate) -> tuple[list[Prompt], dict[str, list[Prompt]]]:
    data = config.data

    def prompts(path: Path, data: DataConfig) -> list[Prompt]:
        problems = load_problems(path, question_key=data.question_key, answer_key=data.answer_key, id_key=data.id_key)
        return encode_prompts(problems, models.student.tokenizer, data)

    whole = data.model_copy(update={"long_prompts": "refuse"})  # a benchmark is never cut
    benchmarks = {name: prompts(Path(locate(path)), whole) for name, path in config.evaluation.benchmarks.items()}
    training = prompts(training_file(Path(locate(data.train)), "data.train"), data)
    for model in (models.student, models.teacher):
        if model is not None:
            check_context(training, model, "rollout.max_response_tokens", config.rollout.max_response_tokens)
    for found in benchmarks.values():
        check_context(found, models.student, "evaluation.max_tokens", config.evaluation.max_tokens)
    return training, benchmarks
