"""The study file: methods and students, the choice of learning rates, and the tables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nemo_uecr.config.load import load_as
from nemo_uecr.config.schema import Section, Text
from nemo_uecr.demo.cache import Problems, RecipeConfig
from nemo_uecr.demo.supervised import ModelConfig
from nemo_uecr.ranges import Count, Positive, Range, Seed, Share

#: Names of arms, variants and tables; folders and files have the same names.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
#: `key=value` texts, for example `method.name=grpo`.
Overrides = list[Text]
Rates = Annotated[list[Positive], Field(min_length=1)]


class TaskConfig(RecipeConfig):
    """The problems and models of a study; each student has its own seed for weights and demonstrations."""

    seed: Seed  # of problems, teachers and students
    #: Levels of the training problems; one listed twice is drawn twice as often.
    train_levels: list[Literal[1, 2, 3, 4, 5]] = Field(default=[1, 2, 3, 4, 5], min_length=1)
    validation_problems: Problems  # per set on which learning rates are chosen
    #: Further teachers, for the arms that name them, and student levels, for `students`.
    models: dict[Name, ModelConfig] = Field(default_factory=dict)


class SelectionConfig(Section):
    """The choice of a learning rate for each arm, on students and problems that no table uses."""

    learning_rates: Rates  # candidates
    learning_rates_in: dict[Text, Rates] = Field(default_factory=dict)  # other candidates, by variant
    same_as: dict[Text, Text] = Field(default_factory=dict)  # variant: the variant whose chosen rates it takes
    pairs: Count  # pairs of student and seed per candidate
    overrides: Overrides = Field(default_factory=list)  # of these runs alone


class ArmConfig(Section):
    """One line of the tables: its overrides and its number of pairs."""

    overrides: Overrides
    pairs: Annotated[int, Range(2)]  # each a student and a seed, counted from the first
    teacher: Name  # "teacher", one of task.models, or "student" for the initial student
    other_half: Name | None = None  # another one for every second training problem
    learning_rate_of: Text | None = None  # the arm whose chosen rate it uses; null: its own
    variants: Annotated[list[Text], Field(min_length=1)] | None = None  # that it runs in; null: all
    stage: Count = 1  # runs of stage 1 precede those of stage 2, and so on


class TableConfig(Section):
    """A table: its arms in order, and the reference from which the others are subtracted."""

    title: Text
    reference: Text
    arms: Annotated[list[Text], Field(min_length=2)]
    on_map: bool = True  # whether it is a column of the map


class ClaimConfig(Section):
    """A claim on the map's rows of some tables: their references are not below the best of others.

    It holds if no cell's difference is below 0 after Holm's correction over all of the claim's cells, and no table's
    mean difference, to the method that is the best of them over the table's cells, is below 0 by more than `points`.
    """

    tables: Annotated[list[Text], Field(min_length=1)]
    against: Annotated[list[Text], Field(min_length=1)]  # methods
    points: Positive


class StudyConfig(Section):
    """A whole study."""

    folder: Text  # output
    config: Text  # shared configuration of the local back end, relative to the file that sets it
    overrides: Overrides  # of every run
    processes: Count  # simultaneous runs, one thread each
    #: Processor seconds for the forecast until the first run and model are measured.
    expected_run_seconds: Positive
    expected_model_seconds: Positive
    task: TaskConfig
    selection: SelectionConfig
    #: Named sets of overrides, for example one and several updates per batch; every arm runs in each.
    variants: Annotated[dict[Name, Overrides], Field(min_length=1)]
    arms: Annotated[dict[Name, ArmConfig], Field(min_length=1)]
    tables: Annotated[dict[Name, TableConfig], Field(min_length=1)]
    students: dict[Text, Name] = Field(default_factory=dict)  # student level by variant; default: task.student
    #: Panels of the map by title, each with rows LABEL: VARIANT. The tables are the columns.
    map: dict[Text, dict[Text, Text]] = Field(default_factory=dict)
    claims: dict[Text, ClaimConfig] = Field(default_factory=dict)
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
            teachers = [arm.teacher, *([] if arm.other_half is None else [arm.other_half])]
            _known(f"arms.{name}.teacher", teachers, ("teacher", "student", *self.task.models))
            if arm.learning_rate_of is not None:
                where = set(self.variants_of(arm))  # the other arm must choose its own rate in all of them
                choosing = [other for other in self.arms if all(other in self.tuned(variant) for variant in where)]
                _known(f"arms.{name}.learning_rate_of", [arm.learning_rate_of], choosing)
        for name, table in self.tables.items():
            _known(f"tables.{name}.arms", table.arms, self.arms)
            _known(f"tables.{name}.reference", [table.reference], table.arms)
            claimed = any(name in claim.tables for claim in self.claims.values())
            if self.map and (table.on_map or claimed) and len({*map(method, table.arms)}) < len(table.arms):
                raise ValueError(
                    f"tables.{name}.arms: got {', '.join(table.arms)}; the map and claims expect one arm of each "
                    "method, named METHOD or METHOD.SUFFIX. Rename an arm, or drop map and claims: {_override_: true}"
                )
        if self.claims and not self.map:
            raise ValueError(
                "claims: a claim is about the rows of a map. Set map, or drop the claims: {_override_: true}"
            )
        for name, claim in self.claims.items():
            _known(f"claims.{name}.tables", claim.tables, self.tables)
            for column in claim.tables:
                table = self.tables[column]
                others = {*map(method, table.arms)} - {method(table.reference)}
                _known(f"claims.{name}.against", claim.against, others)
        return self

    @property
    def mapped(self) -> dict[str, TableConfig]:
        """The tables that are columns of the map."""
        return {name: table for name, table in self.tables.items() if table.on_map}

    def candidates(self, variant: str) -> list[float]:
        """Candidate learning rates of a variant."""
        return list(dict.fromkeys(self.selection.learning_rates_in.get(variant, self.selection.learning_rates)))

    def variants_of(self, arm: ArmConfig) -> list[str]:
        """The variants that an arm runs in."""
        return list(self.variants) if arm.variants is None else arm.variants

    def tuned(self, variant: str) -> list[str]:
        """The arms that choose their own learning rate in a variant."""
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
        return max(arm.pairs for arm in self.arms.values())


def method(arm: str) -> str:
    """The arm's method: its name without what follows a dot."""
    return arm.partition(".")[0]


def _known(where: str, given: Iterable[str], legal: Iterable[str]) -> None:
    legal = list(legal)
    for name in given:
        if name not in legal:
            raise ValueError(f"{where}: got {name!r}, expected one of {', '.join(legal)}")


def load_study(path: str | os.PathLike[str]) -> StudyConfig:
    """Read a study file with the files it inherits."""
    loaded = load_as(StudyConfig, path, ())
    origin = Path(loaded.origins["config"])  # the file that sets it
    return loaded.config.model_copy(update={"config": str(origin.parent / loaded.config.config)})
