"""The study file: which methods run on which students, how learning rates are chosen, and which tables come out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nemo_uecr.config.load import load_as
from nemo_uecr.config.schema import Count, Positive, Section, Seed, Share, Text

#: Names of arms, variants and tables become those of folders and files.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
#: `key=value` texts, for example `method.name=grpo`.
Overrides = list[Text]
Rates = Annotated[list[Positive], Field(min_length=1)]
#: Level 1 has 111,466 questions; drawing the last different ones would hardly end.
Problems = Annotated[int, Field(ge=1, le=10_000)]
ZeroToOne = Annotated[float, Field(ge=0, le=1)]


class CourseConfig(Section):
    """How a model of the task is taught before any reinforcement learning."""

    steps: Count  # of the optimizer
    adam_learning_rate: Positive  # peak for the embedding and the norms
    muon_learning_rate: Positive  # peak for the weight matrices
    skip_rate: ZeroToOne  # probability that the demonstrator does the next operation in the head
    error_rate: ZeroToOne  # probability that a written line is wrong; the demonstrator goes on from the wrong value
    tokens_per_batch: Count  # prompts included


class ModelConfig(Section):
    """Sizes of a model and the course it takes."""

    hidden_size: Count
    intermediate_size: Count
    layers: Count
    heads: Count
    key_value_heads: Count
    head_dim: Count
    course: CourseConfig
    habits: CourseConfig | None = None  # a second course: bad habits for a model that can do the task


class RecipeConfig(Section):
    """Problems and models, made on the spot: what the demo has, and every study."""

    train_problems: Problems  # for reinforcement learning
    bench_problems: Problems  # a level of the five held-out sets
    student: ModelConfig  # one recipe for every student; weights and demonstrations by its own seed
    teacher: ModelConfig


class TaskConfig(RecipeConfig):
    """What a study has besides."""

    seed: Seed  # of problems, teachers and students; student number n has its own stream
    #: The training problems' levels are drawn from these; one that stands twice is drawn twice as often.
    train_levels: list[Literal[1, 2, 3, 4, 5]] = Field(default=[1, 2, 3, 4, 5], min_length=1)
    validation_problems: Problems  # a level of the sets on which learning rates are chosen
    #: Other teachers, for the arms that name them, and other student levels, for `students`.
    models: dict[Name, ModelConfig] = Field(default_factory=dict)


class SelectionConfig(Section):
    """The choice of a learning rate for each arm, on students and problems that no table uses."""

    learning_rates: Rates  # candidates
    #: Other candidates in the variants that are named here; several updates a batch want lower rates.
    learning_rates_in: dict[Text, Rates] = Field(default_factory=dict)
    same_as: dict[Text, Text] = Field(default_factory=dict)  # variants that take the rates chosen in another one
    pairs: Count  # students, each with its own seed, that every candidate runs on
    overrides: Overrides = Field(default_factory=list)  # of these runs alone


class ArmConfig(Section):
    """One line of the tables: what it changes, and on how many pairs it runs."""

    overrides: Overrides
    pairs: Annotated[int, Field(ge=2)]  # runs on the first so many; each is a student and a seed of its own
    teacher: Name  # what scores: teacher, one of task.models, or "student", the initial one itself
    learning_rate_of: Text | None = None  # the arm whose chosen rate it uses; null: it has a choice of its own
    variants: Annotated[list[Text], Field(min_length=1)] | None = None  # that it runs in; null: all
    stage: Count = 1  # runs of stage 1 come before those of stage 2, and so on; within a stage pairs come first


class TableConfig(Section):
    """A table: its lines in order, and the one that the others are subtracted from."""

    title: Text
    reference: Text
    arms: Annotated[list[Text], Field(min_length=2)]


class StudyConfig(Section):
    """A whole study."""

    folder: Text  # output
    config: Text  # configuration of the local back end that all runs share, relative to the file that says it
    overrides: Overrides  # of every run
    processes: Count  # runs at once, one thread each
    #: Processor seconds for the forecast before the first run and the first model; later ones use what was measured.
    expected_run_seconds: Positive
    expected_model_seconds: Positive
    task: TaskConfig
    selection: SelectionConfig
    #: Named sets of overrides; every arm runs in each, for example one and several updates a batch.
    variants: Annotated[dict[Name, Overrides], Field(min_length=1)]
    arms: Annotated[dict[Name, ArmConfig], Field(min_length=1)]
    tables: Annotated[dict[Name, TableConfig], Field(min_length=1)]
    students: dict[Text, Name] = Field(default_factory=dict)  # student level by variant; elsewhere task.student
    #: Panels of the map by title, each with its rows: a variant by label. The tables are the columns.
    map: dict[Text, dict[Text, Text]] = Field(default_factory=dict)
    confidence: Share  # level of the intervals

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        _known("selection.learning_rates_in", self.selection.learning_rates_in, self.variants)
        same_as = self.selection.same_as
        _known("selection.same_as", same_as, self.variants)
        _known("selection.same_as", same_as.values(), self.variants.keys() - same_as)
        _known("students", self.students, self.variants)
        _known("students", self.students.values(), self.task.models)
        for panel in self.map.values():
            _known("map", panel.values(), self.variants)
        for name, arm in self.arms.items():
            _known(f"arms.{name}.variants", arm.variants or (), self.variants)
            _known(f"arms.{name}.teacher", [arm.teacher], ("teacher", "student", *self.task.models))
            if arm.learning_rate_of is not None:
                where = set(self.variants_of(arm))  # the other arm must choose a rate of its own in all of them
                choosing = [other for other in self.arms if all(other in self.tuned(variant) for variant in where)]
                _known(f"arms.{name}.learning_rate_of", [arm.learning_rate_of], choosing)
        for name, table in self.tables.items():
            _known(f"tables.{name}.arms", table.arms, self.arms)
            _known(f"tables.{name}.reference", [table.reference], table.arms)
            methods = [arm.partition(".")[0] for arm in table.arms]
            if self.map and (len({*methods}) < len(methods) or "grpo" not in methods):
                raise ValueError(
                    f"tables.{name}.arms: got {', '.join(table.arms)}; a map expects grpo and one arm of each method, "
                    "named by what stands before the dot. Add or rename an arm, or drop the map: {_override_: true}"
                )
        return self

    def candidates(self, variant: str) -> list[float]:
        """Different learning rates to choose from in a variant."""
        return list(dict.fromkeys(self.selection.learning_rates_in.get(variant, self.selection.learning_rates)))

    def variants_of(self, arm: ArmConfig) -> list[str]:
        """Names of the variants that an arm runs in."""
        return list(self.variants) if arm.variants is None else arm.variants

    def tuned(self, variant: str) -> list[str]:
        """Names of the arms that choose a learning rate of their own in a variant."""
        return [
            name for name, arm in self.arms.items() if arm.learning_rate_of is None and variant in self.variants_of(arm)
        ]

    def rates_in(self, variant: str) -> str:
        """The variant whose chosen learning rates a variant takes."""
        return self.selection.same_as.get(variant, variant)

    def level(self, variant: str) -> str:
        """Student level of a variant."""
        return self.students.get(variant, "student")

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
    """Read a study file with what it inherits."""
    loaded = load_as(StudyConfig, path, ())
    beside = Path(loaded.origins["config"])  # the file that says it, whichever inherits it
    return loaded.config.model_copy(update={"config": str(beside.parent / loaded.config.config)})
