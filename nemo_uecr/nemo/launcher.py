"""Starts a run: NeMo-RL's own set-up and its own, unmodified training loop, with our parts handed in."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.core.methods import METHODS
from nemo_uecr.errors import ConfigError, RunFolderError
from nemo_uecr.files import check_writable
from nemo_uecr.nemo import run_folder, upstream
from nemo_uecr.nemo.estimator import StepContext, UecrEstimator
from nemo_uecr.nemo.evaluation import training_evaluation
from nemo_uecr.nemo.loss import UecrLoss
from nemo_uecr.nemo.policy import PolicyMethods
from nemo_uecr.nemo.preflight import (
    check_conversion,
    check_models,
    check_problems,
    check_visible_models,
    long_prompts,
)
from nemo_uecr.nemo.teacher import RayTeacher
from nemo_uecr.nemo.translate import ENVIRONMENT, ENVIRONMENT_FQN, master_config, teacher_gpus_of_nodes
from nemo_uecr.nemo.upstream import Evaluate
from nemo_uecr.stopping import RunStopped, StopRequest, listening, seconds_left

log = logging.getLogger(__name__)

#: Seconds before the end of the job by which the checkpoint must have been begun.
SAVING_S = 300


def train(config: NemoConfig, *, resume: bool, origins: Mapping[str, str], objective: str) -> Path:
    """Run to the last step; returns the run folder.

    Args:
        config: the resolved configuration.
        resume: continue from the newest checkpoint in the run folder.
        origins: where each value came from, for the run folder.
        objective: the loss as one equation, for the run folder.

    Raises:
        UpstreamError: another NeMo-RL is installed.
        DataError: problems or a model are not there, or student and teacher have different vocabularies.
        ConfigError: a model cannot be cut or fed as the configuration says.
        RunStopped: it was asked to end before its last step, and has saved.
        RunFolderError: the folder holds a run that was not asked to be resumed, or the run was asked to end and its
            configuration saves nothing.
        CheckpointError: the folder's run has another configuration.
    """
    run_folder.check_folder(config, resume=resume)
    check_problems(config)
    check_visible_models(config)
    version = upstream.check()
    dropped = long_prompts(config, check_models(config))
    check_conversion("student", config.student)
    if config.method.entry.needs_teacher:
        check_conversion("teacher", config.teacher)
    evaluation = training_evaluation(config)
    folder = Path(config.run.folder)
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    native_config = upstream.master_config_class()(**master_config(config, dropped=dropped))
    log.info("NeMo-RL %s, method %s", version, config.method.name)
    records = {"origins": origins, "objective": objective, "version": version}
    stop, completed = _run(config, native_config, evaluation, records)
    report_early_end(stop, config, completed=completed)
    return folder


def check_schema(config: NemoConfig) -> str:
    """Validate the translated configuration with NeMo-RL's own schema; returns NeMo-RL's version.

    Raises:
        UpstreamError: another NeMo-RL is installed.
        ConfigError: its schema refuses the configuration.
    """
    from pydantic import ValidationError

    version = upstream.check()
    try:
        upstream.master_config_class()(**master_config(config))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"NeMo-RL {version} refuses {where}: {first['msg']} (got {first['input']!r})") from error
    return version


def _run(
    config: NemoConfig, native_config: Any, evaluation: Evaluate | None, records: Mapping[str, Any]
) -> tuple[StopRequest, int]:
    """Start Ray, set up and train; returns the request to stop and the completed steps."""
    upstream.register_environment(ENVIRONMENT, ENVIRONMENT_FQN)
    parts = upstream.prepare_run(native_config)
    context = StepContext(config, parts[0], completed_steps=0)
    has_teacher = config.method.entry.needs_teacher
    dedicated = has_teacher and config.teacher.dedicated_gpus > 0

    def make_policy(**given: Any) -> Any:
        """What the loop's set-up calls in place of NeMo-RL's policy; the teacher is built first, and then asleep."""
        upstream.register_worker()
        teacher = None
        if has_teacher:
            cluster = upstream.teacher_cluster(teacher_gpus_of_nodes(config)) if dedicated else given["cluster"]
            teacher = RayTeacher(
                config, student=given["config"], cluster=cluster, tokenizer=given["tokenizer"], stays=dedicated
            )
        policy_class = type("UecrPolicy", (PolicyMethods, upstream.policy_class()), {})
        return policy_class(context=context, teacher=teacher, worker_extension_cls_fqn=upstream.WORKER_FQN, **given)

    def before_the_loop(final: Any, completed_steps: int) -> None:
        if evaluation is not None:
            # The loop takes the first step of any epoch for the start, also after a resume.
            at_start = config.evaluation.at_start and completed_steps == 0
            upstream.schedule_validation(final, every=config.evaluation.every, at_start=at_start)
        context.completed_steps = completed_steps
        limit_time(final)
        run_folder.drop_later_records(config, completed_steps=completed_steps)

    # Listening begins here: starting Ray sets a handler of its own for SIGTERM.
    with (
        run_folder.begun_by_a_step(config, lambda: context.completed_steps),
        listening() as stop,
        upstream.substitutions(
            estimator=lambda: UecrEstimator(context),
            colocated_worker_groups=3 if has_teacher and not dedicated else 2,
            evaluation=evaluation,
            stop=stop,
        ),
    ):
        run_folder.write_run_files(config, **records)
        completed = upstream.run_loop(
            native_config, parts, training_loss(config), make_policy=make_policy, before=before_the_loop
        )
    return stop, completed


def training_loss(config: NemoConfig) -> UecrLoss:
    """The loss that NeMo-RL's loop hands to the workers."""
    loss, method = config.loss, config.method
    loss_type, input_type = upstream.loss_markers()
    native = None
    if config.conventions.kl == "nemo_rl":
        native = upstream.native_loss(
            {
                "reference_policy_kl_penalty": loss.reference_kl,
                "ratio_clip_min": loss.clip_low,
                "ratio_clip_max": loss.clip_high,
            }
        )
    opd_coef = method.opd_coef if "opd_coef" in METHODS[method.name].settings else None
    return UecrLoss(loss, opd_coef=opd_coef, loss_type=loss_type, input_type=input_type, native=native)


def limit_time(native_config: Any) -> None:
    """Let the training loop save and return before the job ends, or before a step that would not fit.

    Args:
        native_config: NeMo-RL's configuration of the run; its clock starts with the loop, that is, now.
    """
    left = seconds_left()
    if left is None:
        return
    minutes, seconds = divmod(max(0, int(left - SAVING_S)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    limit = f"{days:02d}:{hours:02d}:{minutes:02d}:{seconds:02d}"
    log.info("the job ends in %.0f s; the run saves and ends within %s (days:hours:minutes:seconds)", left, limit)
    native_config.checkpointing["checkpoint_must_save_by"] = limit


def report_early_end(stop: StopRequest, config: NemoConfig, *, completed: int) -> None:
    """Raise what an early end amounts to; nothing after the last step.

    Raises:
        RunStopped: a checkpoint was saved.
        RunFolderError: the configuration saves none.
    """
    if not stop.asked or completed >= config.train.steps:
        return
    if config.checkpoint.every == 0:
        raise RunFolderError(
            f"stopped by {stop.reason} with checkpoint.every=0: nothing was saved; set it to at least 1"
        )
    raise RunStopped(
        f"stopped by {stop.reason} after step {completed} of {config.train.steps}; "
        f"{config.run.folder}/checkpoints/step_{completed} is complete. Run again to continue"
    )
