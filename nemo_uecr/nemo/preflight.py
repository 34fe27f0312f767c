"""What a run, or a teacher alone, is refused for before Ray starts or anything is written: problems, models, layout."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.config.nemo_schema import NemoConfig, NemoDataConfig, NemoStudentConfig, NemoTeacherConfig
from nemo_uecr.config.schema import CallReward, VerifierReward, teacher_models
from nemo_uecr.data.manifest import check_answers, training_problems
from nemo_uecr.data.problems import Problem, check_routing, kind_of, level_of, problems_of, teacher_name, value_at
from nemo_uecr.errors import DataError
from nemo_uecr.files import file_sha256, read_object, replace_file
from nemo_uecr.generation import models
from nemo_uecr.generation.engines import check_model_place, end_ids, unended_turn
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.step import Routes
from nemo_uecr.plan.faults import layout_faults, mismatches_of, refuse, teacher_alone_faults
from nemo_uecr.plan.shapes import ARCHITECTURES, KNOWN, ModelShape, shape_of, shape_of_values
from nemo_uecr.verifier.extract import opens_thought
from nemo_uecr.verifier.rewards import FunctionReward

log = logging.getLogger(__name__)


# Problems.


def chosen_problems(data: NemoDataConfig, seed: int) -> list[Problem]:
    """Problems in the file's order, those of the wanted difficulty, and a seeded draw of ``data.subset`` of them."""
    problems = training_problems(data)
    if talked := next((problem for problem in problems if problem.context), None):
        raise DataError(
            f"{data.train}: problem {talked.id!r} has turns before its question, and NeMo-RL's processor reads one; "
            "name a field with the question alone, as in data.question_key=extra_info.question"
        )
    low, high = data.difficulty_low, data.difficulty_high
    if low is not None and high is not None:
        problems = [problem for problem in problems if low <= _difficulty(problem, data) <= high]
    if data.subset is not None:
        if len(problems) < data.subset:
            wanted = "" if low is None else f" of difficulty {low} to {high}"
            raise DataError(
                f"{data.train}: {len(problems)} problems{wanted}; expected at least data.subset={data.subset}"
            )
        places = sorted(random.Random(seed).sample(range(len(problems)), data.subset))
        problems = [problems[place] for place in places]
    return problems


def _difficulty(problem: Problem, data: NemoDataConfig) -> float:
    given = value_at(problem.columns, str(data.difficulty_key))
    level = level_of(given)
    if level is None:
        raise DataError(
            f"{data.train} (data.difficulty_key): problem {problem.id!r} has {kind_of(given)} under "
            f"{data.difficulty_key!r}, expected a number; its columns are {', '.join(problem.columns)}; for problems "
            "without difficulties: data.difficulty_key=null data.difficulty_low=null data.difficulty_high=null"
        )
    return level


def check_problems(config: NemoConfig) -> list[Problem]:
    """The chosen problems, enough for a step; benchmarks and reward functions are loaded, too."""
    problems = chosen_problems(config.data, config.run.seed)
    _check_enough(config, len(problems))
    named = {f"evaluation.benchmarks.{name}": given for name, given in config.evaluation.benchmarks.items()}
    read = {key: problems_of(config.data, given, key) for key, given in named.items()}
    check_answers(config, read | {"data.train": problems})
    for each in config.reward:
        if isinstance(each, CallReward):
            FunctionReward(each).close()
    return problems


def encoded_prompts(config: NemoConfig, problems: Sequence[Problem], tokenizer: Any) -> dict[int, list[int]]:
    """Token ids of the prompts by place; too long ones are refused unless they are to be dropped."""
    prompts = models.fitting_prompts(tokenizer, problems, config.data)
    _check_enough(config, len(prompts))
    models.check_ids(prompts.values(), config.student.vocabulary, tokenizer, "the student")
    return prompts


def routes(config: NemoConfig, problems: Sequence[Problem], prompts: Mapping[int, Sequence[int]]) -> Routes | None:
    """The teacher of each problem that has a prompt; None where there are not several."""
    if not config.teachers or not config.active_teachers:
        return None
    kept = [problems[place] for place in prompts]
    check_routing(kept, config.routing, config.teachers)
    names = [teacher_name(problem, config.routing, config.teachers) for problem in kept]
    by_prompt: dict[tuple[int, ...], str] = {}
    for problem, name, ids in zip(kept, names, prompts.values(), strict=True):
        if by_prompt.setdefault(tuple(ids), name) != name:
            raise DataError(
                f"problem {problem.id!r} is routed to the teacher {name}, an equal prompt before it to "
                f"{by_prompt[tuple(ids)]}; expected one teacher per prompt"
            )
    return Routes(by_prompt, names)


def _check_enough(config: NemoConfig, count: int) -> None:
    needed = config.rollout.prompts_per_step
    if count < needed:
        raise DataError(
            f"{config.data.train}: {count} problems are left to train on; expected at least "
            f"rollout.prompts_per_step={needed}, because no step would ever be filled"
        )


# Models.


def check_visible_models(config: NemoConfig) -> bool:
    """Compare layout, lengths and vocabulary with the models whose sizes can be read without a network.

    Returns:
        Whether every model was looked at; a folder that is not on this machine is left to the start of the run.
    """

    def visible(name: str, role: str) -> ModelShape | None:
        file = Path(name) / "config.json"
        here = file.is_file() and read_object(file).get("model_type") in ARCHITECTURES  # else checked as far as known
        return shape_of(name, role=role) if here or name.removesuffix("-Base") in KNOWN else None

    student = visible(config.student.model_name, "student")
    teachers = {key: visible(name, key) for key, name in teacher_models(config).items()}
    _refuse_models(config, student, teachers)
    return None not in (student, *teachers.values())


def check_models(config: NemoConfig) -> Any:
    """Everything about the models that is known before a worker starts; returns the student's tokenizer."""
    teachers = {key: _shape(config, section, key) for key, section in config.active_teachers.items()}
    _refuse_models(config, _shape(config, config.student, "student"), teachers)
    tokenizer = _tokenizer(config)
    ends = end_ids(config.student.model_name, tokenizer, local=models.only_here(config.student.model_name))
    for fault in (hidden_marks(config, tokenizer), unended_turn(tokenizer, ends, config.rollout.stop)):
        if fault:
            log.warning("student: %s", fault)
    return tokenizer


def hidden_marks(config: NemoConfig, tokenizer: Any) -> str:
    """In words: a mark of thoughts that NeMo-RL hides from the built-in verifier; empty where there is none."""
    special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    marks = [mark for mark in special if opens_thought(mark) or opens_thought(f"{mark}analysis")]  # gpt-oss's channels
    if not marks or not any(isinstance(each, VerifierReward) for each in config.reward):
        return ""
    return (
        f"{marks[0]!r} is a special token, and NeMo-RL removes those before it asks for a reward: the built-in "
        "verifier cannot tell a thought from the answer, and pays for boxes in thoughts; take a reward of your own "
        "(reward=FILE.py:FUNCTION) or backend: local"
    )


def _refuse_models(config: NemoConfig, student: ModelShape | None, teachers: Mapping[str, ModelShape | None]) -> None:
    faults = [fault for teacher in teachers.values() or [None] for fault in layout_faults(config, student, teacher)]
    refuse(list(dict.fromkeys([*faults, *mismatches_of(config, student, teachers)])))


def check_teacher_alone(config: NemoConfig, *, longest: int) -> None:
    """Everything about a teacher alone, which scores sequences of up to so many tokens of the student's tokenizer."""
    refuse(teacher_alone_faults(config, _shape(config, config.teacher, "teacher"), longest))
    _tokenizer(config)


def check_conversion(role: str, model: NemoStudentConfig | NemoTeacherConfig) -> None:
    """Refuse Megatron weights of a conversion that did not end, or of a model folder which holds other ones by now.

    NeMo-RL finds its conversions by the model's name and takes any that has begun; without a tracker file Megatron
    would load none of its weights. The sha256 of a folder's weight files stands beside each.
    """
    name = model.model_name
    if name is None or model.megatron_checkpoint is not None:
        return
    folder, converted = Path(name), upstream.conversion_folder(name)
    begun = (converted / "iter_0000000").exists()
    if begun and not all(any(converted.glob(last)) for last in ("iter_0000000/run_config.yaml", "latest_*")):
        raise DataError(
            f"{role}.model_name: NeMo-RL's conversion {converted} was interrupted; remove it, and the run makes it "
            "again, unless another run is making it now"
        )
    if not folder.is_dir():
        return
    log.info("%s: hashing the weight files of %s", role, folder)
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*.bin"))]
    hashes = {path.name: file_sha256(path) for path in files}
    record = converted.with_name(f"{converted.name}.sha256.json")
    if not begun:
        record.parent.mkdir(parents=True, exist_ok=True)
        replace_file(record, json.dumps(hashes, indent=1).encode())
    elif not record.is_file() or json.loads(record.read_bytes()) != hashes:
        raise DataError(
            f"{role}.model_name: no record shows that NeMo-RL's conversion {converted} was made of the weights that "
            f"are now in {folder}; remove it, and the run makes it again when it starts"
        )


def _tokenizer(config: NemoConfig) -> Any:
    """The student's tokenizer, compared with each teacher's."""
    from transformers import AutoTokenizer

    ours = _loaded(AutoTokenizer, config.student.model_name)
    for teacher in teacher_models(config).values():
        theirs = models.output_columns(teacher, local_files_only=models.only_here(teacher))
        models.check_same_tokenizer(ours, _loaded(AutoTokenizer, teacher), (config.student.vocabulary, theirs))
    return ours


def _shape(config: NemoConfig, model: NemoStudentConfig | NemoTeacherConfig, role: str) -> ModelShape | None:
    """Sizes from the model's own configuration; None for an architecture whose layout is not known here."""
    from transformers import AutoConfig

    if model.megatron_checkpoint is not None:
        folder = Path(model.megatron_checkpoint)
        if not (folder / "run_config.yaml").is_file() and not any(folder.glob("iter_*/run_config.yaml")):
            raise DataError(
                f"{role}.megatron_checkpoint: {folder} has no run_config.yaml and no iter_* folder with one; give what "
                "NeMo-RL or `nemo-uecr convert` wrote, such as .../weights/iter_0000000, or null"
            )
    loaded = _loaded(AutoConfig, str(model.model_name))
    if role == "student" and loaded.vocab_size != config.student.vocabulary:
        columns = loaded.vocab_size
        raise DataError(f"the student has {columns} output columns; take student.vocabulary={columns}")
    values: dict[str, Any] = loaded.to_dict()
    if values.get("model_type") in ARCHITECTURES:
        return shape_of_values(values, f"{role}.model_name: {model.model_name}")
    log.warning("%s.model_name: the layout of a %s is not checked before the start", role, values.get("model_type"))
    return None


def _loaded(auto: Any, name: str) -> Any:
    check_model_place(name)
    loaded = models.load_pretrained(auto, name, local_files_only=models.only_here(name))
    if code := getattr(loaded, "init_kwargs", vars(loaded)).get("auto_map"):
        raise DataError(
            f"model {name!r} names code of its own ({str(code)[:80]}), which NeMo-RL would run; remove auto_map from "
            "its files if transformers knows the model type, or choose another model"
        )
    return loaded
