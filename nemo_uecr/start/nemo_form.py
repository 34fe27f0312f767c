"""A run inside NeMo-RL from a configuration of our own form: its facts for the list of checks, and its start.

The checks of the models run after the list: they may fetch from the hub, and hand on what they loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.config.nemo_schema import NemoConfig, NemoRlEnvironment, NemoStudentConfig, NemoTeacherConfig
from nemo_uecr.config.schema import teacher_models
from nemo_uecr.data.manifest import chosen_problems
from nemo_uecr.files import read_object
from nemo_uecr.plan.faults import layout_faults, mismatches_of, refuse
from nemo_uecr.plan.nemo import nemo_plan
from nemo_uecr.plan.shapes import ARCHITECTURES, KNOWN, ModelShape, shape_of
from nemo_uecr.start import problem_sets
from nemo_uecr.start.facts import LENGTHS, NemoRun, size_of
from nemo_uecr.start.job import Resources

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

#: What the layout says where it could not look at every model.
UNSEEN = "a model's folder is not here, or its kind unknown: its layout and lengths are checked at the start"


def of_nemo(config: NemoConfig, *, ray_port: int, resources: Resources | None) -> NemoRun:
    """What the checks read of the configuration."""
    active, benchmarks, seed = config.active_teachers, config.evaluation.benchmarks, config.run.seed
    loaded: dict[str, NemoStudentConfig | NemoTeacherConfig] = {"student": config.student, **active}
    return NemoRun(
        ray_port=ray_port, nodes=config.cluster.nodes, gpus=config.cluster.gpus_per_node,
        folder=Path(config.run.folder), resources=resources,
        kept_checkpoints=config.checkpoint.keep_last + 1,
        method=config.method, tolerances=config.tolerances.model_dump(),
        on_gpu=True, size_of=size_of,
        plan_on=lambda device: nemo_plan(config, device, LENGTHS),
        layout=lambda with_models: layout(config, with_models=with_models),
        models={"student": config.student.model_name, **teacher_models(config)},
        tokenizers=teacher_models(config),
        vocabulary=config.student.vocabulary,
        megatron_checkpoints={key: section.megatron_checkpoint for key, section in loaded.items()},
        stop=config.rollout.stop,
        data=config.data, benchmarks=benchmarks,
        read=lambda: {
            problem_sets.TRAIN: chosen_problems(config.data, seed),
            **problem_sets.benchmark_problems(config.data, benchmarks),
        },
        least_problems=config.rollout.prompts_per_step,
        routing=config.routing, teacher_names=list(config.teachers),
        reward=[each for each in config.reward if not isinstance(each, NemoRlEnvironment)],
        correct_at=config.correct_at,
    )  # fmt: skip


# The checks with what the configuration names.


def layout(config: NemoConfig, *, with_models: bool) -> str:
    """The layout can be placed, as far as it is known here; with models also lengths and vocabularies.

    A model whose sizes cannot be read without a network is left to the start of the run.
    """

    def visible(name: str, role: str) -> ModelShape | None:
        file = Path(name) / "config.json"
        here = file.is_file() and read_object(file).get("model_type") in ARCHITECTURES  # else checked as far as known
        return shape_of(name, role=role) if here or name.removesuffix("-Base") in KNOWN else None

    if not with_models:
        refuse(layout_faults(config, None, None))
        return "fits the GPUs"
    student = visible(config.student.model_name, "student")
    teachers = {key: visible(name, key) for key, name in teacher_models(config).items()}
    _refuse_models(config, student, teachers)
    return UNSEEN if None in (student, *teachers.values()) else "fits the GPUs and the models"


def _refuse_models(config: NemoConfig, student: ModelShape | None, teachers: Mapping[str, ModelShape | None]) -> None:
    faults = [fault for teacher in teachers.values() or [None] for fault in layout_faults(config, student, teacher)]
    refuse(list(dict.fromkeys([*faults, *mismatches_of(config, student, teachers)])))
