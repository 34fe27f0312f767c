"""A run inside NeMo-RL from its recipe: what the list of checks reads of it, and what `config check` prints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from nemo_uecr.config.load import value_at
from nemo_uecr.config.recipes import Recipe, load_recipe
from nemo_uecr.data.manifest import chosen_problems
from nemo_uecr.errors import ConfigError
from nemo_uecr.generation.models import MIXTURES, config_values, untried_mixture
from nemo_uecr.nemo import rules
from nemo_uecr.nemo.layout import Job, Model, job_of
from nemo_uecr.nemo.recipe import lag_of, section_of, view
from nemo_uecr.plan.contents import ASSUMED, GIB
from nemo_uecr.plan.faults import job_faults, refuse
from nemo_uecr.plan.nemo import nemo_plan, teacher_stays
from nemo_uecr.plan.shapes import ARCHITECTURES, ModelShape, known, shape_of
from nemo_uecr.start import problem_sets
from nemo_uecr.start.facts import LENGTHS, NemoRun, NemoRunWithProblems, size_of
from nemo_uecr.start.job import Resources

log = logging.getLogger(__name__)

#: What the layout says, which is of counts alone: without the models, with them, where not all of them are here.
DIVIDES = "its sizes divide the GPUs; plan says whether the memory is enough"
DIVIDES_MODELS = "its sizes divide the GPUs and the models; plan says whether the memory is enough"
UNSEEN = "its sizes divide the GPUs; a model's folder is not here, or its kind unknown: whether they divide it is open"


def accepted(recipe: Recipe) -> Job:
    """The job of a recipe; ConfigError with every key that is refused, its value and the reason."""
    section = section_of(recipe.values, recipe.origins, recipe.path)
    refuse(rules.faults_of(recipe.values, section))
    return job_of(recipe.values, section)


def of_recipe(job: Job, *, ray_port: int, resources: Resources | None) -> NemoRun:
    """What the checks read of a recipe that is accepted."""
    section, data, settings = job.section, job.section.data, view(job.values, job.section, vocabulary=0)
    names = {key: model.name for key, model in job.models.items()}
    folders = {"uecr.folder": settings.folder, "checkpointing.checkpoint_dir": job.at("checkpointing.checkpoint_dir")}
    starts = {key: value_at(model.policy, "pretrained_checkpoint.path") for key, model in job.teachers.items()}
    common: dict[str, Any] = {
        "ray_port": ray_port, "nodes": job.nodes, "gpus": job.gpus_per_node,
        "folder": settings.folder, "outputs": {key: str(folder) for key, folder in folders.items()},
        "resources": resources,
        "kept_checkpoints": (job.at("checkpointing.keep_top_k") or 1) + 1,
        "method": section.method, "tolerances": section.tolerances.model_dump(),
        "on_gpu": True, "size_of": size_of,
        "plan_on": lambda device: nemo_plan(job, device, LENGTHS),
        "layout": lambda with_models: layout(job, with_models=with_models),
        "models": names, "tokenizers": {key: names[key] for key in job.teachers},
        "megatron_checkpoints": {"student": job.at("checkpointing.pretrained_checkpoint.path"), **starts},
        "stop": job.at("policy.generation.stop_strings") or (),
    }  # fmt: skip
    if data is None:
        return NemoRun(**common)
    benchmarks = section.evaluation.benchmarks if section.evaluation is not None else {}
    return NemoRunWithProblems(
        **common,
        data=data,
        benchmarks=benchmarks,
        read=lambda: {
            problem_sets.TRAIN: chosen_problems(data, settings.seed),
            **problem_sets.benchmark_problems(data, benchmarks),
        },
        routing=section.routing,
        teacher_names=[key.removeprefix("teachers.") for key in job.teachers],
        reward=section.reward or (),
        correct_at=section.correct_at,
        draws_ahead=settings.whole_steps,
        environment=section.environment,
        least_problems=job.prompts,
    )


def settled_teachers(path: str, overrides: Sequence[str], gpu_memory: Callable[[], int | None]) -> list[str]:
    """Overrides that say of the recipe's teachers whether they stay on the student's GPUs, where it leaves that open.

    `plan`'s own rule, on GPUs of this machine's memory; where none is seen here, or a model is of unknown sizes, they
    leave.
    """
    job = accepted(load_recipe(path, overrides))
    teachers = job.section.active_teachers
    if job.shares_gpus or job.section.dedicated_gpus or all(one.stays is not None for one in teachers.values()):
        return []
    memory, stays, why = gpu_memory(), False, "no GPU is seen here"
    if memory is not None:
        device = replace(ASSUMED, memory=memory)
        try:
            stays = teacher_stays(job, device, LENGTHS)
            why = f"it {'fits' if stays else 'does not fit'} beside the student in {memory / GIB:.1f} GiB"
        except ConfigError as error:
            why = str(error)
    log.info("the teacher %s the student's GPUs: %s", "stays on" if stays else "leaves", why)
    return [f"++{job.teachers[name].key}.stays={str(stays).lower()}" for name in job.teachers]


def layout(job: Job, *, with_models: bool) -> str:
    """The layout can be placed, as far as it is known here; with models also lengths and vocabularies.

    A model whose sizes cannot be read without a network is left to the start of the run.
    """
    if not with_models:
        refuse(job_faults(job, {}))
        return DIVIDES
    refuse(family_faults(job))
    shapes = {key: visible_shape(model) for key, model in job.models.items()}
    refuse(job_faults(job, shapes))
    return UNSEEN if None in shapes.values() else DIVIDES_MODELS


def visible_shape(model: Model) -> ModelShape | None:
    """Sizes of a model that is here or in the table; None for another."""
    values = config_values(model.name)
    if values.get("model_type") in ARCHITECTURES or (not values and known(model.name) is not None):
        return shape_of(model.name, role=model.key)
    return None


def family_faults(job: Job) -> list[str]:
    """Mixtures of experts of families that were not tried, and those whose family cannot be told here."""
    return [fault for model in job.models.values() for fault in _family_faults(model)]


def _family_faults(model: Model) -> Iterator[str]:
    name, values = model.name, config_values(model.name)
    if fault := untried_mixture(values):
        yield f"{model.key}.model_name: got {name}, {fault}"
    elsewhere = name.startswith(("/", ".", "~"))  # a folder of the cluster's, which its start will look into
    if model.parallel.expert > 1 and not (values or elsewhere or known(name)):
        yield (
            f"{model.key}.model_name: got {name!r:.60}, which is split over {model.parallel.expert} expert ranks; "
            f"expected a mixture of experts that is known here, {', '.join(MIXTURES)}: its config.json tells, in a "
            "folder of that name or by hf download NAME config.json"
        )


# -- in words --------------------------------------------------------------------------------------------------------


def described(job: Job) -> list[str]:
    """What is changed in the recipe, what of it is to be known, and how its models lie, one line each."""
    return [
        f"objective: {objective(job)}",
        *(f"adjusted: {change}" for change in job.changes),
        *(f"note: {line}" for line in (*rules.notes(job.values), *rules.missing_files(job.values))),
        *(f"{key}: {_placed(model)}" for key, model in job.models.items()),
        f"vLLM: {job.generation_gpus} GPUs, {job.engine_ranks} an engine"
        + ("" if job.shares_gpus else ", apart from the student's"),
    ]


def _placed(model: Model) -> str:
    parallel = model.parallel
    split = {name: getattr(parallel, name) for name in ("tensor", "pipeline", "context", "expert")}
    ranks = ", ".join(f"{name} {count}" for name, count in split.items() if count > 1) or "not split"
    copies = f"{model.data_ranks} cop{'y' if model.data_ranks == 1 else 'ies'}"
    at_once = model.microbatch_tokens("logprob")
    return f"{model.name} on {model.gpus} GPUs, {ranks}, {copies}, scored {at_once} tokens at once"


def objective(job: Job) -> str:
    """The run's loss on one line: the clipped surrogates of NeMo-RL's loss, their ratio, and its reference KL."""
    from nemo_uecr.config.methods import objective_of

    loss = job.values["loss_fn"]
    kind = "KL3" if job.section.kl == "paper" else str(loss.get("reference_policy_kl_type", "k3")).replace("k", "KL")
    dual = loss.get("ratio_clip_c")
    parts = {
        f"clip {loss['ratio_clip_min']:g}/{loss['ratio_clip_max']:g}": True,
        f"dual clip {dual:g}" if dual else "": dual,
        "CISPO": loss.get("use_cispo"),
        "ratio of the sequence": loss.get("sequence_level_importance_ratios"),
        "ratio to the policy that sampled": lag_of(job.values),
    }
    clipped = ", ".join(words for words, holds in parts.items() if holds)
    return objective_of(job.section.method, clipped=clipped, kl=kind, kl_coef=loss["reference_policy_kl_penalty"])


def native_schema(recipe: Recipe, version: str) -> str:
    """NeMo-RL's own schema accepts the recipe."""
    from pydantic import ValidationError

    from nemo_uecr.nemo import upstream

    try:
        upstream.native("MasterConfig")(**recipe.values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(f"NeMo-RL {version} refuses {key}: {first['msg']} (got {first['input']!r:.60})") from error
    return f"NeMo-RL {version}: its schema accepts the recipe"
