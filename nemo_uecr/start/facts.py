"""What the checks read of a run, in plain values: filled from a configuration of the local back end or of NeMo-RL.

A check takes a few of them, so that it does not matter which kind of file they came from. What is read from disk (the
problems, the tokenizer, the sizes of the models) is read once, when the first check asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nemo_uecr.config.schema import (
    AnyReward,
    Config,
    DataConfig,
    EnvironmentConfig,
    RecipeDataConfig,
    RoutingConfig,
    SelfTeacherConfig,
    UrlTeacherConfig,
    VerifierReward,
    teacher_folders,
    teacher_models,
    url_teachers,
)
from nemo_uecr.core.methods import Method
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import DataError
from nemo_uecr.generation import adapter, models
from nemo_uecr.generation.engines import check_model_place
from nemo_uecr.generation.environments import Environment
from nemo_uecr.generation.prompts import ChatSettings
from nemo_uecr.paths import SCHEME
from nemo_uecr.plan import faults
from nemo_uecr.plan.contents import ASSUMED, CPU, Device, Lengths, Plan
from nemo_uecr.plan.local import Sizes, local_plan
from nemo_uecr.plan.shapes import ModelShape, shape_of
from nemo_uecr.start import machine, model_files, problem_sets
from nemo_uecr.start.job import Resources
from nemo_uecr.start.problem_sets import TRAIN, Problems
from nemo_uecr.start.seen import Caution

LENGTHS = Lengths(prompt=1, response=1, sigma=0.0)  # they do not change the memory


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the checks of this machine read."""

    ray_port: int  # of the Ray head
    nodes: int
    gpus: int  # that are needed on this node


class NoRun(Machine):
    """A machine that is looked at for no run in particular."""


@dataclass(frozen=True, kw_only=True)
class Run(Machine):
    """What the checks of every run read; the key of a model is `student`, `teacher` or `teachers.NAME`."""

    folder: Path
    kept_checkpoints: int
    resources: Resources | None  # of its Slurm job; None where no check asks for them
    method: Method
    tolerances: Mapping[str, float]
    # The memory that it takes.
    on_gpu: bool  # else on a CPU
    size_of: Sizes
    plan_on: Callable[[Device], Plan]
    # Its models.
    models: Mapping[str, str]  # folder or hub name of each that is loaded
    tokenizers: Mapping[str, str]  # of each teacher, also of one that is loaded elsewhere
    stop: Sequence[str]

    @property
    def given(self) -> Resources:
        """The resources of its Slurm job."""
        assert self.resources is not None
        return self.resources

    @property
    def student(self) -> str:
        """Folder or hub name of the student."""
        return self.models["student"]

    @property
    def of_the_demo(self) -> bool:
        """Whether a model is one that the first use makes."""
        return any(name.startswith(SCHEME) for name in self.models.values())

    # Read once, by the first check that asks.

    @cached_property
    def shapes(self) -> dict[str, ModelShape]:
        """Sizes of every model; DataError where one is not on this machine."""
        for place in (Path(name).expanduser() for name in self.models.values() if not name.startswith(SCHEME)):
            check_model_place(str(place))
            if place.is_dir() and adapter.base_of(place) is None:
                models.check_config(place)
        return {key: self.size_of(name, key) for key, name in self.models.items()}

    @property
    def unplanned(self) -> Caution | None:
        """Why the run has no plan; None where it has one."""
        try:
            _ = self.shapes
        except DataError as error:
            return Caution(f"memory and disk are not checked: {error}", "the run needs no plan; watch its first step")
        return None

    @cached_property
    def plan(self) -> Plan:
        """The plan on the GPU of this machine, on an H200 where it has none, or on its CPU."""
        if not self.on_gpu:
            return self.plan_on(CPU)
        memory = machine.gpu_memory()
        return self.plan_on(ASSUMED if memory is None else replace(ASSUMED, name="GPU of this machine", memory=memory))

    @cached_property
    def tokenizer(self) -> Any:
        """The student's."""
        return model_files.tokenizer_of(self.student)

    @property
    def columns(self) -> int:
        """Output columns of the student, from its config.json."""
        place = adapter.config_place(str(Path(self.student).expanduser()))
        return models.output_columns(place, local_files_only=True)


@dataclass(frozen=True, kw_only=True)
class RunWithProblems(Run):
    """What the checks of a run with problems and rewards of this project's read."""

    data: DataConfig | RecipeDataConfig
    benchmarks: Mapping[str, str]
    read: Callable[[], Problems]
    routing: RoutingConfig | None
    teacher_names: Sequence[str]  # that problems are routed to
    reward: Sequence[AnyReward]
    correct_at: float
    draws_ahead: str | None  # the key=value with which responses are not drawn before their step; None: they are not
    environment: EnvironmentConfig | None  # what answers the student's turns
    started: Environment | None = None  # the same where the run has it already

    @cached_property
    def playing(self) -> Environment | None:
        """What is known of the environment once it is loaded; it is played by the run alone."""
        if self.environment is None or self.started is not None:
            return self.started
        with closing(Environment(self.environment)) as environment:
            return environment

    @property
    def played(self) -> Environment:
        """The environment of a run that has one."""
        assert self.playing is not None
        return self.playing

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """What the student may call."""
        return () if self.playing is None else self.playing.tools

    @property
    def chat(self) -> ChatSettings:
        """How its problems become prompts."""
        return ChatSettings.of(self.data.model_dump(), self.tools)

    @property
    def verified(self) -> bool:
        """Whether the built-in verifier is among the rewards."""
        return any(isinstance(each, VerifierReward) for each in self.reward)

    # Read once, by the first check that asks.

    @cached_property
    def problems(self) -> Problems:
        """Training problems and benchmarks, by `data.train` and by name."""
        return self.read()

    @property
    def training(self) -> Sequence[Problem]:
        """The problems to train on."""
        return self.problems[TRAIN]

    @property
    def training_if_read(self) -> Sequence[Problem] | None:
        """The same where they can be read without making the demo."""
        try:
            return self.problems.get(TRAIN)
        except DataError:  # another check's finding
            return None

    @cached_property
    def prompts(self) -> dict[int, list[int]]:
        """Token ids of the training prompts that fit, by place."""
        return problem_sets.prompts_that_fit(self.tokenizer, self.problems, self.data, self.tools)

    @property
    def kept(self) -> list[Problem]:
        """The problems that have a prompt."""
        return [self.training[place] for place in self.prompts]

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest training prompt."""
        return max(map(len, self.prompts.values()))


@dataclass(frozen=True, kw_only=True)
class LocalRun(RunWithProblems):
    """What only those of the local back end read."""

    too_long: Callable[[int], list[str]]  # faults of a prompt of so many tokens with the longest response
    servers: Mapping[str, UrlTeacherConfig]
    teacher_probe: float  # tolerance of a server's scores
    max_response_tokens: int
    settled_ends: Collection[str]  # teachers for which the run states how an end token is scored
    templates: Mapping[str, str]  # prompts of its own that a teacher reads, by the teacher's name
    engine: str
    extras: Sequence[str]
    tracker: str | None  # from a file of the user's


@dataclass(frozen=True, kw_only=True)
class NemoRun(Run):
    """What only those of recipes read, which run inside NeMo-RL."""

    layout: Callable[[bool], str]  # refuses its faults, with True also those of the models that are here
    megatron_checkpoints: Mapping[str, str | None]
    outputs: Mapping[str, str]  # what it writes besides its folder, by key

    @property
    def conversions(self) -> Path:
        """Where NeMo-RL keeps the Megatron weights that it makes, one node for all."""
        from nemo_uecr.nemo import upstream

        return upstream.conversions()

    @property
    def shared_paths(self) -> dict[str, str]:
        """What every node reads or writes."""
        paths = dict(self.outputs)
        made = {f"{key}.megatron_checkpoint": folder for key, folder in self.megatron_checkpoints.items() if folder}
        if len(made) < len(self.models):
            made["HF_HOME"] = str(self.conversions)
        here = {f"{key}.model_name": name for key, name in self.models.items() if Path(name).expanduser().is_dir()}
        return paths | made | here


@dataclass(frozen=True, kw_only=True)
class NemoRunWithProblems(NemoRun, RunWithProblems):
    """A recipe with problems and rewards of this project's."""

    least_problems: int  # that fill a step

    @property
    def shared_paths(self) -> dict[str, str]:
        """What every node reads or writes."""
        return super().shared_paths | {"data.train": self.data.train}


def size_of(name: str, key: str) -> ModelShape:
    """Sizes of a model from its config.json, or from a table."""
    return shape_of(name, role=key)


def of_local(
    config: Config,
    size_of: Sizes,
    *,
    ray_port: int,
    resources: Resources | None,
    started: Environment | None = None,
) -> LocalRun:
    """A run of the local back end; ``started`` is its environment where it plays already."""
    active, teachers = config.active_teachers, teacher_models(config)
    few_bits = any(getattr(teacher, "quantize", "none") != "none" for teacher in active.values())
    needed = {"lora": config.student.lora_rank > 0, "lowbit": few_bits or config.train.optimizer != "adamw"}
    own_prompts = {key: one.prompt_template for key, one in active.items() if isinstance(one, SelfTeacherConfig)}

    def too_long(prompt: int) -> list[str]:
        student = size_of(config.student.model_name, "student")
        return faults.length_faults(
            config, student, {key: size_of(name, key) for key, name in teachers.items()}, prompt
        )

    return LocalRun(
        ray_port=ray_port, nodes=1, gpus=int(config.device == "cuda"),
        folder=Path(config.run.folder), resources=resources,
        kept_checkpoints=config.checkpoint.keep_last + 1 + config.checkpoint.keep_best,
        method=config.method, tolerances=config.tolerances.model_dump(),
        on_gpu=config.device == "cuda", size_of=size_of,
        plan_on=lambda device: local_plan(config, device, LENGTHS, sizes=size_of),
        too_long=too_long,
        models={"student": config.student.model_name, **teachers},
        tokenizers=teacher_folders(config),
        servers=url_teachers(config), teacher_probe=config.tolerances.teacher_probe,
        settled_ends={key for key, one in active.items() if getattr(one, "end_token", None) is not None},
        stop=config.rollout.stop,
        data=config.data, benchmarks=config.evaluation.benchmarks,
        read=lambda: problem_sets.local_problems(config.data, config.evaluation.benchmarks),
        max_response_tokens=config.rollout.max_response_tokens,
        routing=config.routing,
        teacher_names=[key.removeprefix("teachers.") for key in active],
        templates={key.removeprefix("teachers."): template for key, template in own_prompts.items()},
        reward=config.reward, correct_at=config.correct_at, environment=config.environment, started=started,
        draws_ahead="rollout.lag=0" if config.rollout.lag else None,
        engine=config.rollout.engine,
        extras=[*(extra for extra, asked in needed.items() if asked), *config.trackers],
        tracker=config.telemetry.tracker,
    )  # fmt: skip
