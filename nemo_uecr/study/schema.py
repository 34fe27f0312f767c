"""The study file: which methods run on which students, how learning rates are chosen, and which tables come out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from nemo_uecr.config.load import load_as
from nemo_uecr.config.schema import Count, LearningRate, Positive, Section, Seed, Share, Text

MINIMUM_PAIRS = 2
#: Students of a study, each a model to teach.
MAXIMUM_PAIRS = 1000


def _tuple_of_list(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


#: Names of arms, variants and tables become those of folders and files.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_tuple_of_list)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_tuple_of_list), Field(min_length=1)]
Rates = Annotated[tuple[LearningRate, ...], BeforeValidator(_tuple_of_list), Field(min_length=1)]
Levels = Annotated[tuple[Literal[1, 2, 3, 4, 5], ...], BeforeValidator(_tuple_of_list), Field(min_length=1)]
#: Level 1 has 111,466 questions; drawing the last different ones would hardly end.
Problems = Annotated[int, Field(ge=1, le=10_000)]
ZeroToOne = Annotated[float, Field(ge=0, le=1)]


class CourseConfig(Section):
    """How a model of the task is taught before any reinforcement learning."""

    steps: Count
    """Optimizer steps."""

    adam_learning_rate: Positive
    """Peak for the embedding and the norms."""

    muon_learning_rate: Positive
    """Peak for the weight matrices."""

    skip_rate: ZeroToOne
    """Probability that the demonstrator does the next operation in the head."""

    error_rate: ZeroToOne
    """Probability that a written line of the demonstrator is wrong; it goes on from the wrong value."""

    tokens_per_batch: Count
    """Tokens of a batch, prompts included."""


class ModelConfig(Section):
    """Sizes of a model and the course it takes."""

    hidden_size: Count
    """Width of the residual stream."""

    intermediate_size: Count
    """Width inside the MLP."""

    layers: Count
    """Transformer layers."""

    heads: Count
    """Query heads."""

    key_value_heads: Count
    """Key and value heads."""

    head_dim: Count
    """Width of one head."""

    course: CourseConfig
    """How it is taught."""

    habits: CourseConfig | None = None
    """A second course on the same weights, which gives a model that can do the task bad habits; null: none."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.heads % self.key_value_heads or self.head_dim % 2:
            raise ValueError(
                f"got {self.heads} heads, {self.key_value_heads} key_value_heads and head_dim {self.head_dim}; "
                "expected heads to be a multiple of key_value_heads, and an even head_dim"
            )
        return self


class RecipeConfig(Section):
    """Problems and models, made on the spot: what the demo has, and every study."""

    train_problems: Problems
    """Problems for reinforcement learning."""

    bench_problems: Problems
    """Problems a level of the five held-out sets."""

    student: ModelConfig
    """Every student: one recipe, weights and demonstrations by its own seed."""

    teacher: ModelConfig
    """The frozen teacher of every run."""


class TaskConfig(RecipeConfig):
    """What a study has besides."""

    seed: Seed
    """Seeds problems, teachers and students; student number n has its own stream."""

    train_levels: Levels = (1, 2, 3, 4, 5)
    """Levels from which their levels are drawn; one that stands twice is drawn twice as often."""

    validation_problems: Problems
    """Problems a level on which learning rates are chosen."""

    bad_teacher: ModelConfig | None
    """A deliberately bad teacher for arms that ask for it; null: none."""


class SelectionConfig(Section):
    """The choice of a learning rate for each arm, on students and problems that no table uses."""

    learning_rates: Rates
    """Candidates."""

    learning_rates_in: dict[Text, Rates] = Field(default_factory=dict)
    """Other candidates in the variants that are named here; several updates a batch want lower rates."""

    pairs: Annotated[int, Field(ge=1, le=MAXIMUM_PAIRS)]
    """Students, each with its own seed, that every candidate runs on."""

    overrides: Texts = ()
    """`key=value` texts of these runs alone, for example no evaluation before training."""


class ArmConfig(Section):
    """One line of the tables: what it changes, and on how many pairs it runs."""

    overrides: Texts
    """`key=value` texts, for example `method.name=grpo`."""

    pairs: Annotated[int, Field(ge=MINIMUM_PAIRS, le=MAXIMUM_PAIRS)]
    """Runs on the first this many pairs; each pair is a student and a seed of its own."""

    teacher: Literal["teacher", "bad_teacher", "student"]
    """Which frozen model scores: the teacher, the bad one, or the initial student itself."""

    learning_rate_of: Text | None
    """Use the learning rate chosen for that arm; null: choose one for this arm."""

    variants: Names | None = None
    """Names of the variants that it runs in; null: all of them."""

    stage: Count = 1
    """Runs of stage 1 come before those of stage 2, and so on; within a stage pairs come first."""


class TableConfig(Section):
    """A table: its lines, and the line that the others are compared with."""

    title: Text
    """Heading."""

    reference: Text
    """Arm that is subtracted in the paired differences."""

    arms: Annotated[Names, Field(min_length=2)]
    """Lines in order."""


class SensitivityConfig(Section):
    """A panel of the sensitivity figure: arms that differ in one setting."""

    title: Text
    """What the horizontal axis is called."""

    default: Text
    """Arm with the shipped value, which the others are compared with."""

    points: Annotated[dict[Text, float], Field(min_length=2)]
    """Value of the setting by arm, the default among them."""


class StudyConfig(Section):
    """A whole study."""

    folder: Text
    """Output folder."""

    config: Text
    """Configuration of the local back end that all runs share, relative to the study file."""

    overrides: Texts
    """`key=value` texts of every run."""

    processes: Count
    """Runs at once, one thread each."""

    expected_run_seconds: Positive
    """Processor seconds of one run, for the forecast before the first run; later forecasts use measured ones."""

    expected_model_seconds: Positive
    """Processor seconds to teach one model, for the forecast before the first; later forecasts use measured ones."""

    task: TaskConfig
    """Problems, students and teachers."""

    selection: SelectionConfig
    """How learning rates are chosen."""

    variants: Annotated[dict[Name, Texts], Field(min_length=1)]
    """Named sets of overrides; every arm runs in each, for example one and several updates a batch."""

    arms: Annotated[dict[Name, ArmConfig], Field(min_length=1)]
    """Lines of the tables by name."""

    tables: Annotated[dict[Name, TableConfig], Field(min_length=1)]
    """Tables by name."""

    sensitivity: dict[Text, SensitivityConfig] = Field(default_factory=dict)
    """Panels of the sensitivity figure by name."""

    confidence: Share
    """Level of the intervals."""

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        _known("selection.learning_rates_in", self.selection.learning_rates_in, self.variants)
        for name, arm in self.arms.items():
            _known(f"arms.{name}.variants", arm.variants or (), self.variants)
            if arm.teacher == "bad_teacher" and self.task.bad_teacher is None:
                raise ValueError(f"arms.{name}.teacher: got bad_teacher, but task.bad_teacher is null; describe one")
            if arm.learning_rate_of is not None:
                where = set(self.variants_of(arm))  # the other arm must choose a rate of its own in all of them
                choosing = [other for other in self.arms if all(other in self.tuned(variant) for variant in where)]
                _known(f"arms.{name}.learning_rate_of", [arm.learning_rate_of], choosing)
        for name, table in self.tables.items():
            _known(f"tables.{name}.arms", table.arms, self.arms)
            _known(f"tables.{name}.reference", [table.reference], table.arms)
        for name, panel in self.sensitivity.items():
            _known(f"sensitivity.{name}.points", panel.points, self.arms)
            _known(f"sensitivity.{name}.default", [panel.default], panel.points)
        return self

    def candidates(self, variant: str) -> tuple[float, ...]:
        """Different learning rates to choose from in a variant."""
        return tuple(dict.fromkeys(self.selection.learning_rates_in.get(variant, self.selection.learning_rates)))

    def variants_of(self, arm: ArmConfig) -> tuple[str, ...]:
        """Names of the variants that an arm runs in."""
        return tuple(self.variants) if arm.variants is None else arm.variants

    def tuned(self, variant: str) -> list[str]:
        """Names of the arms that choose a learning rate of their own in a variant."""
        return [
            name for name, arm in self.arms.items() if arm.learning_rate_of is None and variant in self.variants_of(arm)
        ]

    @property
    def pair_count(self) -> int:
        """Pairs that the study needs in all."""
        return max(arm.pairs for arm in self.arms.values())


def _known(where: str, given: Iterable[str], legal: Iterable[str]) -> None:
    legal = list(legal)
    for name in given:
        if name not in legal:
            raise ValueError(f"{where}: got {name!r}, expected one of {', '.join(legal)}")


def load_study(path: str | os.PathLike[str]) -> StudyConfig:
    """Read a study file with what it inherits.

    Raises:
        ConfigError: with one line that says what was got and what was expected.
    """
    study = load_as(StudyConfig, path, ()).config
    return study.model_copy(update={"config": str(Path(path).parent / study.config)})
