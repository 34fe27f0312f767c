"""A run inside NeMo-RL from a configuration of our own form: its facts for the list of checks, and its start.

The checks of the models run after the list: they may fetch from the hub, and hand on what they loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.config.load import check_same_configuration, written_as
from nemo_uecr.config.nemo_schema import NemoConfig, NemoRlEnvironment, NemoStudentConfig, NemoTeacherConfig
from nemo_uecr.config.schema import VerifierReward, teacher_models
from nemo_uecr.data.manifest import chosen_problems
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.files import locked, read_object
from nemo_uecr.generation import models
from nemo_uecr.generation.engines import end_ids
from nemo_uecr.plan.faults import layout_faults, mismatches_of, refuse, teacher_alone_faults
from nemo_uecr.plan.nemo import nemo_plan
from nemo_uecr.plan.shapes import ARCHITECTURES, KNOWN, ModelShape, shape_of, shape_of_values
from nemo_uecr.start import folders, model_files, problem_sets
from nemo_uecr.start.checks import TRAIN, require
from nemo_uecr.start.facts import LENGTHS, NemoRun, size_of
from nemo_uecr.start.job import Resources
from nemo_uecr.start.seen import Caution

if TYPE_CHECKING:
    from nemo_uecr.data.batch_file import SavedBatch
    from nemo_uecr.nemo.step import Routes

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


def train(config: NemoConfig, *, resume: bool, origins: Mapping[str, str]) -> Path:
    """Check the run and hand it to NeMo-RL; returns the run folder.

    A run that cannot be started as it is configured writes nothing.
    """
    from nemo_uecr.nemo import launcher, upstream

    folder = Path(config.run.folder)

    def check_same(written: Path) -> None:
        saved = written_as(NemoConfig, written)
        check_same_configuration(written, config, saved.model_dump(mode="json"))

    with locked(folder):
        folders.free_folder(folder, check_same, resume=resume)
        run = of_nemo(config, ray_port=0, resources=None)
        require(run, TRAIN)
        version = upstream.check()
        prompts = encoded_prompts(config, run.training, check_models(config))
        by_problem = routes(config, run.training, prompts)
        check_conversion("student", config.student)
        for key, section in config.active_teachers.items():
            check_conversion(key, section)
        dropped = [place for place in range(len(run.training)) if place not in prompts]
        launcher.train(config, origins=origins, version=version, dropped=dropped, routes=by_problem)
    return folder


def score_saved_batch(config: NemoConfig, saved: SavedBatch, out: Path) -> None:
    """Check a teacher alone, and score a saved batch with it."""
    from nemo_uecr.nemo import teacher, upstream

    if not config.method.needs_teacher():
        raise ConfigError(f"method.name: {config.method.name} reads no teacher; expected one that does, such as uecr")
    if config.teachers:
        raise ConfigError("teachers: a batch is scored by one teacher; expected teacher.model_name alone")
    rows = teacher.rows_of(saved, config.student.vocabulary)
    version = upstream.check()
    longest = int(rows["input_lengths"].max())
    refuse(teacher_alone_faults(config, _shape(config, config.teacher, "teacher"), longest))
    _tokenizer(config)
    check_conversion("teacher", config.teacher)
    teacher.score_saved_batch(config, saved, rows, out, version=version)


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


def check_models(config: NemoConfig) -> Any:
    """Everything about the models that is known before a worker starts; returns the student's tokenizer."""
    teachers = {key: _shape(config, section, key) for key, section in config.active_teachers.items()}
    _refuse_models(config, _shape(config, config.student, "student"), teachers)
    tokenizer = _tokenizer(config)
    ends = end_ids(config.student.model_name, tokenizer, local=models.only_here(config.student.model_name))
    verified = any(isinstance(each, VerifierReward) for each in config.reward)
    for seen in (
        model_files.visible_marks(tokenizer, verified=verified),
        model_files.ended_turn(tokenizer, ends, config.rollout.stop),
    ):
        if isinstance(seen, Caution):
            log.warning("student: %s", seen.message)
    return tokenizer


def encoded_prompts(config: NemoConfig, problems: Sequence[Problem], tokenizer: Any) -> dict[int, list[int]]:
    """Token ids of the prompts by place; too long ones are refused unless they are to be dropped."""
    prompts = models.fitting_prompts(tokenizer, problems, config.data)
    problem_sets.enough(len(prompts), config.rollout.prompts_per_step, config.data.train)
    models.check_ids(prompts.values(), config.student.vocabulary, tokenizer, "the student")
    return prompts


def routes(config: NemoConfig, problems: Sequence[Problem], prompts: Mapping[int, Sequence[int]]) -> Routes | None:
    """The teacher of each problem that has a prompt; None where there are not several."""
    if not config.teachers or not config.active_teachers:
        return None
    kept = [problems[place] for place in prompts]
    return problem_sets.routes(kept, prompts.values(), config.routing, list(config.teachers))


def check_conversion(role: str, model: NemoStudentConfig | NemoTeacherConfig) -> None:
    """Check NeMo-RL's conversion of a model that names no Megatron checkpoint of its own."""
    if model.model_name is not None and model.megatron_checkpoint is None:
        model_files.conversion(role, model.model_name)


def _refuse_models(config: NemoConfig, student: ModelShape | None, teachers: Mapping[str, ModelShape | None]) -> None:
    faults = [fault for teacher in teachers.values() or [None] for fault in layout_faults(config, student, teacher)]
    refuse(list(dict.fromkeys([*faults, *mismatches_of(config, student, teachers)])))


def _tokenizer(config: NemoConfig) -> Any:
    """The student's tokenizer, compared with each teacher's."""
    from transformers import AutoTokenizer

    ours = model_files.loaded_without_code(AutoTokenizer, config.student.model_name)
    for teacher in teacher_models(config).values():
        columns = models.output_columns(teacher, local_files_only=models.only_here(teacher))
        theirs = model_files.loaded_without_code(AutoTokenizer, teacher)
        models.check_same_tokenizer(ours, theirs, (config.student.vocabulary, columns))
    return ours


def _shape(config: NemoConfig, model: NemoStudentConfig | NemoTeacherConfig, role: str) -> ModelShape | None:
    """Sizes from the model's own configuration; None for an architecture whose layout is not known here."""
    from transformers import AutoConfig

    if model.megatron_checkpoint is not None:
        folders.named_checkpoint(f"{role}.megatron_checkpoint", Path(model.megatron_checkpoint))
    loaded = model_files.loaded_without_code(AutoConfig, str(model.model_name))
    if role == "student" and loaded.vocab_size != config.student.vocabulary:
        columns = loaded.vocab_size
        raise DataError(f"the student has {columns} output columns; take student.vocabulary={columns}")
    values: dict[str, Any] = loaded.to_dict()
    if values.get("model_type") in ARCHITECTURES:
        return shape_of_values(values, f"{role}.model_name: {model.model_name}")
    log.warning("%s.model_name: the layout of a %s is not checked before the start", role, values.get("model_type"))
    return None
