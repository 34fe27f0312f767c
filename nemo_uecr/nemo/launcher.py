"""Starts a run: its folder, NeMo-RL's own set-up and its own, unmodified training loop, with our parts handed in."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.config.nemo_schema import NemoConfig, NemoTeacherConfig
from nemo_uecr.config.schema import CallReward
from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import file_sha256
from nemo_uecr.nemo import translate, upstream
from nemo_uecr.nemo.estimator import UecrEstimator
from nemo_uecr.nemo.evaluation import training_evaluation
from nemo_uecr.nemo.loss import UecrLoss
from nemo_uecr.nemo.policy import PolicyMethods
from nemo_uecr.nemo.step import Routes, StepContext
from nemo_uecr.nemo.teacher import RayTeacher
from nemo_uecr.nemo.telemetry import resumed_state
from nemo_uecr.reproducible import installed
from nemo_uecr.steps.draws import run_provenance
from nemo_uecr.stopping import RunStopped, StopRequest, listening, seconds_left
from nemo_uecr.telemetry.run_folder import write_first_files
from nemo_uecr.telemetry.sinks import EVALUATIONS, truncate_records

log = logging.getLogger(__name__)

#: Seconds before the end of the job by which the checkpoint must have begun.
SAVING_S = 300
#: Packages whose versions the run folder records.
PACKAGES = ("torch", "transformers", "megatron-core", "megatron-bridge", "transformer-engine", "vllm", "ray")


def train(
    config: NemoConfig, *, origins: Mapping[str, str], version: str, dropped: Sequence[int], routes: Routes | None
) -> None:
    """Run to the last step, from the newest checkpoint if there is one; the run has been checked (`start`).

    ``origins``, where each value came from, and NeMo-RL's ``version`` are for the run folder; problems at the
    ``dropped`` places are left out. A run that is asked to end saves first and raises `RunStopped`.
    """
    evaluation = training_evaluation(config)
    native = translate.native_config(config, version, dropped=dropped)
    Path(config.run.folder).mkdir(parents=True, exist_ok=True)
    log.info("NeMo-RL %s, method %s", version, config.method.name)
    _run(config, native, evaluation, routes, {"origins": origins, "version": version})


def _run(
    config: NemoConfig,
    native: Any,
    evaluation: upstream.Evaluate | None,
    routes: Routes | None,
    records: Mapping[str, Any],
) -> None:
    """Start Ray, set up and train."""
    upstream.register_environment(translate.ENVIRONMENT, translate.ENVIRONMENT_FQN)
    parts = upstream.prepare_run(native)
    (environment,) = parts[2].values()
    context = StepContext(config, parts[0], completed_steps=0, environment=environment, routes=routes)
    sections = config.active_teachers
    dedicated = config.teacher.dedicated_gpus > 0

    def make_policy(**given: Any) -> Any:
        """What the loop's set-up calls in place of NeMo-RL's policy; the teachers are built first, and put to sleep."""
        upstream.register_worker()
        own = upstream.teacher_cluster(translate.teacher_gpus_of_nodes(config)) if dedicated else None
        loaded: dict[NemoTeacherConfig, RayTeacher] = {}
        teachers = {}
        for key, section in sections.items():
            if section not in loaded:
                loaded[section] = RayTeacher(
                    config.alone(section),
                    student=given["config"],
                    cluster=own or given["cluster"],
                    tokenizer=given["tokenizer"],
                    stays=dedicated,
                    workers=key.replace("teachers.", "teacher_"),
                )
            teachers[key.removeprefix("teachers.")] = loaded[section]
        policy_class = type("UecrPolicy", (PolicyMethods, upstream.native("Policy")), {})
        return policy_class(context=context, teachers=teachers, worker_extension_cls_fqn=upstream.WORKER_FQN, **given)

    def before_the_loop(final: Any, completed_steps: int) -> None:
        if evaluation is not None:
            # The loop takes the first step of any epoch for the start, also after a resume.
            at_start = config.evaluation.at_start and completed_steps == 0
            upstream.schedule_validation(final, every=config.evaluation.every, at_start=at_start)
        context.completed_steps = completed_steps
        context.state = resumed_state(Path(config.run.folder), step=completed_steps)
        limit_time(final)
        # Evaluations after the checkpoint will be made again.
        truncate_records(Path(config.run.folder) / EVALUATIONS, last_step=completed_steps or -1)

    # Listening begins here: starting Ray sets a handler of its own for SIGTERM.
    with (
        begun_by_a_step(config, lambda: context.completed_steps),
        listening() as stop,
        upstream.substitutions(
            estimator=lambda: UecrEstimator(context),
            colocated_worker_groups=2 + (0 if dedicated else len(set(sections.values()))),
            evaluation=evaluation,
            stop=stop,
        ),
    ):
        write_run_files(config, **records)
        loss = UecrLoss(config, native)
        completed = upstream.run_loop(native, parts, loss, make_policy=make_policy, before=before_the_loop)
    report_early_end(stop, config, completed=completed)


def limit_time(native: Any) -> None:
    """Let the training loop save and return before the job ends, or before a step that would not fit.

    NeMo-RL's clock starts with the loop, that is, now.
    """
    left = seconds_left()
    if left is not None:
        limit = max(0, int(left - SAVING_S))
        log.info("the job ends in %.0f s; the run saves and ends within %d s", left, limit)
        native.checkpointing["checkpoint_must_save_by"] = f"00:00:00:{limit:02d}"  # days, hours, minutes, seconds


def report_early_end(stop: StopRequest, config: NemoConfig, *, completed: int) -> None:
    """Raise an error that reports how the run ended early; nothing where the last step is done."""
    if not stop.asked or completed >= config.train.steps:
        return
    if config.checkpoint.every == 0:
        raise RunFolderError(f"stopped by {stop.reason} with checkpoint.every=0: nothing was saved; set 1 or more")
    raise RunStopped(
        f"stopped by {stop.reason} after step {completed} of {config.train.steps}; "
        f"{config.run.folder}/checkpoints/step_{completed} is complete. Run again with --resume to continue"
    )


# The run folder.


@contextlib.contextmanager
def begun_by_a_step(config: NemoConfig, completed_steps: Callable[[], int]) -> Iterator[None]:
    """A block that fails before any step leaves a folder that can be begun again, under another configuration too.

    What the folder held before the block stays: a run that could not be continued is still a run.
    """
    written = Path(config.run.folder) / "config.yaml"
    fresh = not written.exists()
    try:
        yield
    except BaseException:
        if fresh and completed_steps() == 0:
            written.unlink(missing_ok=True)
        raise


def write_run_files(config: NemoConfig, *, origins: Mapping[str, str], version: str) -> None:
    """Configuration, origins, tolerances and provenance, before the first step; ``version`` is NeMo-RL's."""
    versions = {package: installed(package) or "not installed in the driver's environment" for package in PACKAGES}
    provenance = run_provenance(config, {"nemo_rl": version, **versions}) | {"command": sys.argv}
    provenance["conventions"] |= config.conventions.model_dump()
    calls = [each for each in config.reward if isinstance(each, CallReward)]
    provenance["sha256"] = {f"reward {each.label}": file_sha256(Path(each.path)) for each in calls}
    write_first_files(Path(config.run.folder), config, origins, provenance)
