"""UECR in NeMo-RL's own launch scripts, none of which is changed.

    nemo-uecr train RECIPE [key=value ...]
    python -m nemo_uecr.nemo.plug_in SCRIPT --config RECIPE [key=value ...]
    with plugged_in(): main()

All three do the same: NeMo-RL's `setup`, which every launch script of GRPO imports and calls, reads the recipe's
section `uecr` and is handed our policy and loss. Data, environments, validation, loggers and `grpo_train` are its own.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.config.load import value_at
from nemo_uecr.ending import USER_ERROR, reported
from nemo_uecr.errors import ConfigError, DataError, RunFolderError, UecrError, first_line
from nemo_uecr.files import locked
from nemo_uecr.nemo import recipe, records, rules, teacher, upstream
from nemo_uecr.nemo.estimator import UecrEstimator
from nemo_uecr.nemo.evaluation import Schedule, beside_validation, training_evaluation
from nemo_uecr.nemo.layout import job_of, layout_faults
from nemo_uecr.nemo.loss import UecrLoss
from nemo_uecr.nemo.policy import PolicyMethods
from nemo_uecr.nemo.recipe import Settings, UecrSection
from nemo_uecr.nemo.step import Routes, StepContext
from nemo_uecr.nemo.teacher import RayTeacher, columns_of
from nemo_uecr.responses.table import Responses
from nemo_uecr.stopping import RunStopped, StopRequest, listening
from nemo_uecr.verifier.rewards import refuse_the_step

log = logging.getLogger(__name__)


class NotPluggedInError(UecrError, RuntimeError):
    """A launch script ended without the plug-in: it has trained plain GRPO, or nothing."""


@contextlib.contextmanager
def plugged_in(origins: Mapping[str, str] | None = None) -> Iterator[None]:
    """Within the block, NeMo-RL's `setup` makes a UECR run of the recipe that it is given.

    The run's record has the ``origins`` of the recipe's values, where they are given.

    A script must import `setup` within the block, as every script does that runs in it. A block that ends without a
    call of it raises `NotPluggedInError`; a run that was asked to end, and saved, raises `RunStopped`.
    """
    version = upstream.check()
    upstream.register_environment(recipe.ENVIRONMENT, "nemo_uecr.nemo.task.RewardEnvironment")
    runs: list[Run] = []
    with contextlib.ExitStack() as until_the_end:
        native, train = upstream.native("setup"), upstream.native("async_grpo_train")
        if early := upstream.importers(native):
            raise NotPluggedInError(
                f"{early[0]} has imported NeMo-RL's setup before the block, and would train plain GRPO; import it "
                "within"
            )

        def setup(*args: Any, **given: Any) -> Any:
            arguments = inspect.signature(native).bind(*args, **given).arguments
            runs.append(Run(arguments["master_config"], arguments["tokenizer"], version, origins or {}))
            return runs[-1].set_up(native, arguments, until_the_end)

        def async_grpo_train(*args: Any, **given: Any) -> None:
            runs[-1].train_asynchronously(train, args, given)

        until_the_end.enter_context(upstream.substituted({"setup": setup, "async_grpo_train": async_grpo_train}))
        try:
            yield
        except SystemExit as end:  # a script may end in sys.exit(main())
            if end.code:
                raise
    if not runs:
        raise NotPluggedInError(
            "NeMo-RL's setup was not called through the plug-in: the script trained plain GRPO, or nothing. It had "
            "imported setup before the block; import it within, or run it with python -m nemo_uecr.nemo.plug_in"
        )
    runs[-1].report_early_end()


class Run:
    """One run: what of it is decided before NeMo-RL's set-up, and what is put into that."""

    def __init__(self, config: Any, tokenizer: Any, version: str, origins: Mapping[str, str]) -> None:
        """Check NeMo-RL's configuration ``config``, adjust it, and read what the adapter needs of it."""
        values = config.model_dump()
        self.section, adjustments = checked(values)
        self.teacher_gpus = recipe.teacher_gpus(values, self.section)
        rules.apply(config, adjustments)
        rules.apply(values, adjustments)
        self.settings = settings_of(values, self.section)
        check_models(values, self.settings)
        config.policy["uecr"] = recipe.worker_section(self.settings)
        self.saves = bool(values["checkpointing"]["enabled"])
        self.version, self.origins, self.stop = version, origins, StopRequest()
        self.timeouts: list[Any] = []
        self.context = StepContext(self.settings, tokenizer)
        if len(self.settings.teachers) > 1:
            self.context.routes = Routes(self.settings.routing, self.settings.teachers)

    def set_up(
        self, native: Callable[..., Any], arguments: Mapping[str, Any], until_the_end: contextlib.ExitStack
    ) -> Any:
        """What NeMo-RL's set-up returns, with our policy, loss and evaluation in it; takes effect until the end."""
        if arguments.get("policy_factory") is not None:
            raise ConfigError("the launch script brings a policy of its own (policy_factory); UECR needs that place")
        config, settings, context = arguments["master_config"], self.settings, self.context
        checkpoint = upstream.latest_checkpoint(config)
        prompts = records.prompt_digests(arguments["dataset"], arguments.get("val_dataset"))
        if checkpoint is not None:
            records.check_same_method(checkpoint, config.model_dump())
            records.check_same_inputs(settings, self.section, prompts)
        evaluation = training_evaluation(settings)
        until_the_end.enter_context(locked(settings.folder))
        # Listening begins here: Ray, which the script has started by now, sets a handler of its own for SIGTERM.
        self.stop = until_the_end.enter_context(listening())
        until_the_end.enter_context(
            upstream.substitutions(
                estimator=lambda: UecrEstimator(context),
                more_worker_groups=0 if self.section.dedicated_gpus else len(distinct(settings)),
                stop=self.stop,
                timeouts=self.timeouts,
            )
        )
        if settings.max_turns > 1:
            room = settings.max_total_sequence_length
            until_the_end.enter_context(upstream.taking_turns(room=room, ours=settings.plays))
        made = list(native(**{**arguments, "policy_factory": self.make_policy}))
        config, state = made[upstream.CONFIG], made[upstream.STATE]
        if not value_at(config, "data.use_multiple_dataloader") and len(made[upstream.LOADER]) == 0:
            per_step = settings.prompts_per_step
            raise DataError(f"the data has fewer problems than grpo.num_prompts_per_step={per_step}: no step is filled")
        if settings.whole_steps is not None and settings.own_rewards:
            refuse_the_step(upstream.readers_of_the_step(), settings.whole_steps)
        made[upstream.LOSS] = UecrLoss(settings, config.loss_fn)
        if not settings.log_batches:
            upstream.without_batches(made[upstream.LOGGER])
        if context.routes is not None:
            made[upstream.LOADER] = LearningLoader(made[upstream.LOADER], context.routes)
        context.completed_steps = upstream.completed_steps(state, asynchronous=settings.lag is not None)
        context.state = upstream.method_state(checkpoint)
        context.save_state = lambda values: upstream.keep_method_state(state, values)
        schedule = None
        if settings.evaluation is not None:
            schedule = Schedule.set(config, settings.evaluation, begins=checkpoint is None)
        validate = beside_validation(
            upstream.native("validate"), evaluation, schedule, own_rewards=settings.own_rewards
        )
        until_the_end.enter_context(upstream.substituted({"validate": validate}))
        records.write(
            settings, self.section, config.model_dump(),
            origins=self.origins, prompts=prompts, version=self.version, step=context.completed_steps,
        )  # fmt: skip
        return tuple(made)

    def make_policy(self, **given: Any) -> Any:
        """What the set-up calls in place of NeMo-RL's policy; the teachers are built first, and put to sleep."""
        upstream.register_worker()
        own = upstream.teacher_cluster(self.teacher_gpus) if self.teacher_gpus else None
        loaded = {
            name: RayTeacher(
                self.settings,
                section,
                student=given["config"],
                cluster=own or given["cluster"],
                tokenizer=given["tokenizer"],
                stays=own is not None or bool(section.stays),
                workers=name if name == "teacher" else f"teacher_{name}",
            )
            for name, section in distinct(self.settings).items()
        }
        sections = self.settings.teachers
        teachers = {
            name: next(loaded[first] for first in loaded if sections[first] == section)
            for name, section in sections.items()
        }
        kind = type("UecrPolicy", (PolicyMethods, upstream.native("Policy")), {})
        return kind(context=self.context, teachers=teachers, worker_extension_cls_fqn=upstream.WORKER_FQN, **given)

    def train_asynchronously(self, native: Callable[..., None], args: Sequence[Any], given: Mapping[str, Any]) -> None:
        """Run NeMo-RL's asynchronous loop; an error that it printed and did not raise, as 0.7 does, is raised."""
        with upstream.collecting(native, self.context) as ended, upstream.printed_errors(self.context) as printed:
            try:
                native(*args, **given)
            except Exception:
                if not ended:  # else it is what came of the collector's end
                    raise
        completed, steps = self.context.completed_steps, self.settings.steps
        last = [error for step, error in printed if step == completed]  # no step came after it: a checkpoint's, say
        stopped = self.stop.reason or any(each.last_saved for each in self.timeouts)
        if not last and (completed >= steps or stopped):
            return
        cause = next(iter([*ended, *last]), None)
        said = "without an error" if cause is None else f"{type(cause).__name__}: {first_line(cause)}"
        raise upstream.WorkerError(f"the asynchronous loop ended after step {completed} of {steps}: {said}") from cause

    def report_early_end(self) -> None:
        """Raise an error that says how the run ended early; nothing where the last step is done."""
        completed, steps = self.context.completed_steps, self.settings.steps
        reason = self.stop.reason or ("the time limit" if any(each.last_saved for each in self.timeouts) else "")
        if not reason or completed >= steps:
            return
        if not self.saves:
            raise RunFolderError(f"stopped by {reason}: checkpointing.enabled is false, so nothing was saved")
        raise RunStopped(
            f"stopped by {reason} after step {completed} of {steps}; its checkpoint is complete. Run the same "
            "command again to continue"
        )


def checked(values: Mapping[str, Any]) -> tuple[UecrSection, list[rules.Adjustment]]:
    """The section of a resolved recipe, and what is changed in the recipe, which is logged; what is refused raises."""
    section = recipe.section_of(values)
    if faults := rules.faults_of(values, section):
        raise ConfigError("; ".join(faults))
    job = job_of(values, section)
    if faults := layout_faults(job):
        raise ConfigError("; ".join(faults))
    for line in (*map(str, job.changes), *rules.notes(values), *rules.missing_files(values)):
        log.info("%s", line)
    return section, [*job.changes]


def check_models(values: Mapping[str, Any], settings: Settings) -> None:
    """Student and teachers share a tokenizer, bring no code, and NeMo-RL's conversions are of their present weights."""
    from transformers import AutoConfig, AutoTokenizer

    from nemo_uecr.generation.engines import end_ids, missing_end_token
    from nemo_uecr.generation.models import check_same_tokenizer, config_values, only_here, untried_mixture
    from nemo_uecr.nemo.model_folders import conversion, hidden_marks, loaded_without_code

    sections = {
        "uecr.teacher" if name == "teacher" else f"uecr.teachers.{name}": section
        for name, section in settings.teachers.items()
    }
    ours = loaded_without_code(AutoTokenizer, settings.model_name)
    ends = end_ids(settings.model_name, ours, local=only_here(settings.model_name))
    stop = value_at(values, "policy.generation.stop_strings") or ()
    for fault in (hidden_marks(ours) if settings.verified else "", missing_end_token(ours, ends, stop)):
        if fault:
            log.warning("the student: %s", fault)
    for section in sections.values():
        loaded_without_code(AutoConfig, section.model_name)
        columns = settings.vocabulary, columns_of(section.model_name)
        check_same_tokenizer(ours, loaded_without_code(AutoTokenizer, section.model_name), columns)
    named = {"policy": settings.model_name, **{key: section.model_name for key, section in sections.items()}}
    for key, name in named.items():  # a hub's config.json is in the cache by now
        if fault := untried_mixture(config_values(name)):
            raise ConfigError(f"{key}.model_name: got {name}, {fault}")
    converted = {} if value_at(values, "checkpointing.pretrained_checkpoint") else {"policy": settings.model_name}
    converted |= {key: each.model_name for key, each in sections.items() if each.megatron_checkpoint is None}
    if value_at(values, "policy.megatron_cfg.force_reconvert_from_hf"):
        return  # no conversion of before is used
    hashed = bool(value_at(values, "uecr.hash_weights"))
    for key, name in converted.items():
        teacher_section = sections.get(key)
        overrides = (teacher_section.overlay if teacher_section else values["policy"]).get("hf_config_overrides")
        conversion(key, name, overrides or {}, hashed=hashed)


def settings_of(values: Mapping[str, Any], section: UecrSection) -> Settings:
    """The settings of an adjusted recipe, with the student's output columns from its model."""
    return recipe.view(values, section, columns_of(values["policy"]["model_name"]))


def distinct(settings: Settings) -> dict[str, recipe.TeacherSection]:
    """The teachers by their first name: two names with equal sections are one."""
    first: dict[str, recipe.TeacherSection] = {}
    for name, section in settings.teachers.items():
        if section not in first.values():
            first[name] = section
    return first


class LearningLoader:
    """NeMo-RL's data loader, whose batches tell each prompt's teacher; all else is the loader's own."""

    def __init__(self, loader: Any, routes: Routes) -> None:
        self._loader, self._routes = loader, routes

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            self._routes.learn(batch)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


# From the command line.


def run_script(script: str | Path, arguments: Sequence[str]) -> None:
    """Run a launch script with UECR in it; a recipe that is refused is refused before the script begins."""
    if not Path(script).is_file():
        raise ConfigError(
            f"{script}: no such file; expected a launch script of NeMo-RL's, such as examples/run_grpo.py"
        )
    origins = check_before(arguments)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))  # as `python SCRIPT` has it, for modules beside the script
    with plugged_in(origins):
        runpy.run_path(str(script), run_name="__main__")


def train(path: str, overrides: Sequence[str]) -> None:
    """Train a recipe with NeMo-RL's own launch script of GRPO."""
    run_script(upstream.launch_script(), ["--config", path, *overrides])


def score_saved_batch(values: dict[str, Any], saved: Responses, out: Path) -> str:
    """Score a saved batch by the teacher of a resolved recipe, on all its GPUs; returns the teacher's model."""
    section, changes = checked(values)
    if len(section.active_teachers) != 1:
        raise ConfigError(
            f"uecr: {section.method.name} with {len(section.active_teachers)} teachers; a batch is scored by one: name "
            "uecr.teacher alone, and a method that reads it, such as uecr"
        )
    cluster = values["cluster"]
    gpus = [cluster["gpus_per_node"]] * cluster["num_nodes"]
    rules.apply(values, changes)
    settings = settings_of(values, section)
    check_models(values, settings)
    upstream.check()
    teacher.score_saved_batch(settings, upstream.native("MasterConfig")(**values), gpus, saved, out)
    return next(iter(section.active_teachers.values())).model_name


def check_before(arguments: Sequence[str]) -> dict[str, str]:
    """Refuse the recipe that a script's arguments name, before Ray and data; returns where its values came from.

    Arguments that name none have no origins, and the recipe is checked when the script calls `setup`.
    """
    from nemo_uecr.config.recipes import load_recipe

    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    if "--config" not in words[:-1]:
        return {}
    place = words.index("--config")
    loaded = load_recipe(words[place + 1], words[:place] + words[place + 2 :])
    for doubt in loaded.doubts:
        log.warning("doubtful: %s", doubt)
    section, changes = checked(loaded.values)
    upstream.check()
    rules.apply(loaded.values, changes)
    check_models(loaded.values, settings_of(loaded.values, section))
    return loaded.origins


def main() -> int:
    """`python -m nemo_uecr.nemo.plug_in SCRIPT ARGUMENT ...`; the exit code is the command line's."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.stderr.write("usage: python -m nemo_uecr.nemo.plug_in SCRIPT --config RECIPE [key=value ...]\n")
        return USER_ERROR
    return reported(lambda: run_script(sys.argv[1], sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
