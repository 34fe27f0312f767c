"""Starts a run: NeMo-RL's own set-up and its own, unmodified training loop, with our parts handed in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_uecr.config.methods import core_settings
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.core.records import Settings
from nemo_uecr.errors import ConfigError
from nemo_uecr.files import replace_file
from nemo_uecr.nemo import run_folder, upstream, verifier_environment
from nemo_uecr.nemo.context import StepContext
from nemo_uecr.nemo.early_end import limit_time, report_early_end
from nemo_uecr.nemo.estimator import UecrEstimator
from nemo_uecr.nemo.evaluation import training_evaluation
from nemo_uecr.nemo.facts import AuditedLogger
from nemo_uecr.nemo.generation import WorkersEngine
from nemo_uecr.nemo.loss import UecrLoss
from nemo_uecr.nemo.parts import Evaluate
from nemo_uecr.nemo.policy import make_uecr_policy
from nemo_uecr.nemo.preflight import (
    check_conversion,
    check_models,
    check_problems,
    check_visible_models,
    long_prompts,
)
from nemo_uecr.nemo.replacing import restoring
from nemo_uecr.nemo.run_spec import Conventions, RunSpec
from nemo_uecr.nemo.teacher_plan import teacher_plan
from nemo_uecr.nemo.teachers import RayTeacher, TeacherPlan, scoring_policy_class, teacher_cluster
from nemo_uecr.nemo.translate import master_config, teacher_gpus_of_nodes
from nemo_uecr.stopping import StopRequest, listening

log = logging.getLogger(__name__)


@restoring()
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
    spec, plan = run_spec(config), teacher_plan(config)
    check_conversion("student", config.student)
    if plan is not None:
        check_conversion("teacher", config.teacher)
    evaluation = training_evaluation(config, lambda generation, end_ids: _engine(config, generation, end_ids))
    folder = run_folder.make_folder(config)
    values = master_config(config, prompt_file=str(_prompt_file(config, folder)), dropped=dropped)
    native_config = upstream.master_config_class()(**values)
    log.info("NeMo-RL %s, method %s, %d responses a step", version, spec.method_name, spec.responses)
    records = {"origins": origins, "objective": objective, "version": version}
    with restoring(*upstream.registries()):
        stop, completed = _run(config, native_config, spec, plan, evaluation, records)
    report_early_end(stop, config, completed=completed)
    return folder


def _run(
    config: NemoConfig,
    native_config: Any,
    spec: RunSpec,
    plan: TeacherPlan | None,
    evaluation: Evaluate | None,
    records: Mapping[str, Any],
) -> tuple[StopRequest, int]:
    """Start Ray, set up and train; returns the request to stop and the completed steps."""
    verifier_environment.register()
    parts = upstream.prepare_run(native_config)
    context = StepContext(spec, completed_steps=0, tokenizer=parts.tokenizer)
    groups = 3 if plan is not None and not plan.dedicated else 2
    # Listening begins here: starting Ray sets a handler of its own for SIGTERM.
    with (
        run_folder.begun_by_a_step(config, lambda: context.completed_steps),
        listening() as stop,
        upstream.substitutions(
            estimator=lambda: UecrEstimator(context),
            colocated_worker_groups=groups,
            evaluation=evaluation,
            stop=stop,
        ),
    ):
        run_folder.write_run_files(config, **records)
        run = upstream.set_up(native_config, parts, _policy_maker(config, context, plan))
        if evaluation is not None:
            # The loop takes the first step of any epoch for the start, also after a resume.
            at_start = config.evaluation.at_start and run.completed_steps == 0
            upstream.schedule_validation(run.config, every=config.evaluation.every, at_start=at_start)
        context.resume_at(run.completed_steps)
        limit_time(run.config)
        run_folder.drop_later_records(config, completed_steps=run.completed_steps)
        upstream.run_loop(replace(run, logger=AuditedLogger(run.logger)), parts, _loss(spec))
    return stop, upstream.completed_steps(run.state)


def _policy_maker(config: NemoConfig, context: StepContext, plan: TeacherPlan | None) -> Callable[..., Any]:
    """What the loop's set-up calls in place of NeMo-RL's policy; the teacher is made with it."""

    def make_policy(**given: Any) -> Any:
        upstream.register_worker()
        teacher = None if plan is None else _teacher(plan, config, given)
        base = scoring_policy_class(timeout_s=config.scoring.timeout_s)
        return make_uecr_policy(base)(
            context=context, teacher=teacher, worker_extension_cls_fqn=upstream.WORKER_FQN, **given
        )

    return make_policy


def check_schema(config: NemoConfig) -> str:
    """Validate the translated configuration with NeMo-RL's own schema; returns NeMo-RL's version.

    Raises:
        UpstreamError: another NeMo-RL is installed.
        ConfigError: its schema refuses the configuration.
    """
    from pydantic import ValidationError

    version = upstream.check()
    try:
        upstream.master_config_class()(**master_config(config, prompt_file="prompt.txt"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"NeMo-RL {version} refuses {where}: {first['msg']} (got {first['input']!r})") from error
    return version


def run_spec(config: NemoConfig) -> RunSpec:
    """The record that policy, estimator and loss read."""
    method, rollout, loss = config.method, config.rollout, config.loss
    return RunSpec(
        method_name=method.name,
        settings=Settings(**core_settings(method)),
        seed=config.run.seed,
        prompts_per_step=rollout.prompts_per_step,
        responses_per_prompt=rollout.responses_per_prompt,
        minibatch_responses=config.train.minibatch_responses,
        temperature=rollout.temperature,
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
        kl_coef=loss.reference_kl,
        vocabulary=config.student.vocabulary,
        chunk_tokens=config.scoring.chunk_tokens,
        overlong_filter=rollout.overlong_filter,
        turn_separator=method.turn_separator,
        scoring_noise=method.scoring_noise,
        tolerances=config.tolerances.model_dump(),
        conventions=Conventions(**config.conventions.model_dump()),
        save_every=config.telemetry.save_batch_every,
        folder=config.run.folder,
    )


def _loss(spec: RunSpec) -> UecrLoss:
    loss_type, input_type = upstream.loss_markers()
    native = None
    if spec.conventions.kl == "nemo_rl":
        native = upstream.native_loss(
            {
                "reference_policy_kl_penalty": spec.kl_coef,
                "ratio_clip_min": spec.clip_low,
                "ratio_clip_max": spec.clip_high,
            }
        )
    return UecrLoss(spec, loss_type=loss_type, input_type=input_type, native=native)


def _teacher(plan: TeacherPlan, config: NemoConfig, given: dict[str, Any]) -> RayTeacher:
    """The teacher, built before the student and asleep when the student is built."""
    cluster = given["cluster"]
    if plan.dedicated:
        cluster = teacher_cluster(teacher_gpus_of_nodes(config))
    return RayTeacher(plan, student_config=given["config"], cluster=cluster, tokenizer=given["tokenizer"])


def _engine(config: NemoConfig, generation: Any, end_ids: frozenset[int]) -> WorkersEngine:
    """Evaluation on the run's own vLLM engines."""
    return WorkersEngine(upstream.generation_leaders(generation), end_ids, seconds=config.scoring.timeout_s)


def _prompt_file(config: NemoConfig, folder: Path) -> Path:
    """The prompt template in NeMo-RL's form: a file with ``{}`` for the question and other braces doubled."""
    before, after = config.data.prompt_template.split("{question}", 1)
    text = "{}".join(part.replace("{", "{{").replace("}", "}}") for part in (before, after))
    path = folder / "prompt.txt"
    replace_file(path, text.encode())
    return path.resolve()
