"""The doctor's look at models: complete files, the same tokens, a chat template, columns, positions, checkpoints."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.checkpoint.reading import ITERATION, MEGATRON, newest_iteration, read_weights
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.schema import teacher_of
from nemo_uecr.data.manifest import training_file
from nemo_uecr.data.models import (
    ModelLoadError,
    check_same_tokenizer,
    has_hub_form,
    load_pretrained,
    read_fields,
    read_header,
    refuse_kernels,
    rendered,
    weight_names,
)
from nemo_uecr.data.models import load_tokenizer as loaded_tokenizer
from nemo_uecr.data.problems import Problem, load_problems
from nemo_uecr.errors import CheckpointError, DataError
from nemo_uecr.files import read_object
from nemo_uecr.local.sequences import encode_prompts
from nemo_uecr.nemo.preflight import long_prompts
from nemo_uecr.plan.faults import rollout_fault, too_long
from nemo_uecr.plan.records import Finding, fail, ok, warn

if TYPE_CHECKING:
    from nemo_uecr.config.schema import Config
    from nemo_uecr.plan.shapes import ModelShape

    Sizes = Callable[[str, str], ModelShape]

__all__ = [
    "chat_finding",
    "code_findings",
    "limits_findings",
    "load_tokenizer",
    "local_problems",
    "megatron_finding",
    "model_finding",
    "resume_findings",
    "tokenizer_findings",
    "vocabulary_findings",
]

QUESTION = "What is 2 + 3?"
CODE = ("config.json", "tokenizer_config.json")
"""Files that can name code of a model folder's own."""

_STEP = re.compile(r"step[-_](\d+)")


def model_finding(role: str, name: str) -> Finding:
    """Whether a model's weights are all there: every shard of a folder, or the hub's cache."""
    folder, check = Path(name).expanduser(), f"{role} model"
    if name.startswith("demo:"):
        return ok(check, f"{name} is made on first use")
    if not folder.is_dir():
        return _cached(check, role, name)
    if not (folder / "config.json").is_file():
        return fail(check, f"{folder} has no config.json", f"give {role}.model_name a Hugging Face folder")
    try:
        read_fields(folder / "config.json", prefix="").stated("model_type")
        names = weight_names(folder)
        missing = [file for file in names if not (folder / file).is_file()]
        if missing:
            more = f" and {len(missing) - 1} more of {len(names)}" if missing[1:] else ""
            raise DataError(f"{folder} lacks {missing[0]}{more}")
        for file in names:
            read_header(folder / file)
    except DataError as error:
        return fail(check, str(error), "copy the folder again, or convert the checkpoint again")
    return ok(check, f"{folder}, every weight file is complete")


def _cached(check: str, role: str, name: str) -> Finding:
    if not has_hub_form(name):
        return fail(check, f"no folder {name}", f"give {role}.model_name a folder or a hub name")
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    if isinstance(found, str):
        return ok(check, f"{name}, in the hub's cache {Path(found).parent}")
    return warn(check, f"{name} is not in the hub's cache of this machine", _download(role, name))


def _download(role: str, name: str) -> str:
    return f"hf download {name} (compute nodes often have no network), or give {role}.model_name a folder"


def code_findings(run: Config | NemoConfig, models: Mapping[str, str]) -> list[Finding]:
    """Model folders that bring Python code: refused here or, by a run inside NeMo-RL, executed.

    Args:
        run: the configuration.
        models: role to folder or hub name.
    """
    findings = []
    for role, name in models.items():
        folder = Path(name).expanduser()
        named = [file for file in CODE if (folder / file).is_file() and "auto_map" in read_object(folder / file)]
        try:
            if named and isinstance(run, NemoConfig):
                raise DataError(f"{folder / named[0]} names code of its own (auto_map), which NeMo-RL would run")
            refuse_kernels(str(folder))
            if "config.json" in named:  # a tokenizer's code is met where the tokenizer is loaded
                from transformers import AutoConfig

                load_pretrained(AutoConfig, str(folder), local_files_only=True)
        except DataError as error:
            remedy = f"give {role}.model_name a model that needs no code of its own"
            findings.append(fail(f"{role} code", str(error), remedy))
    return findings


def load_tokenizer(name: str) -> Any:
    """A tokenizer from a folder or the hub's cache, never from the network.

    Raises:
        DataError: there is none.
    """
    folder = Path(name).expanduser()
    try:
        tokenizer = loaded_tokenizer(str(folder), local_files_only=True)
    except ModelLoadError as error:
        if folder.is_dir():
            raise DataError(f"{name}: {error.reason}") from error
        where = "has no tokenizer in the hub's cache of this machine" if has_hub_form(name) else "is no folder"
        raise DataError(f"{name} {where}") from error
    if not tokenizer("0")["input_ids"]:  # what a folder without tokenizer files gives
        raise DataError(f"{name} has a tokenizer without tokens")
    return tokenizer


def tokenizer_findings(run: Config | NemoConfig) -> list[Finding]:
    """The student's tokenizer with its chat template and the prompts, and the teacher's compared with it id by id."""
    name, teacher = run.student.model_name, teacher_of(run)
    try:
        student = load_tokenizer(name)
    except DataError as error:
        remedy = _download("student", name) if has_hub_form(name) else "give student.model_name a folder or a hub name"
        if Path(name).expanduser().is_dir():
            remedy = "put tokenizer.json and tokenizer_config.json beside the weights"
        return [fail("student tokenizer", str(error), remedy)]
    findings = [ok("student tokenizer", f"{len(student)} tokens"), chat_finding(student, run)]
    if findings[-1].status != "fail" and Path(run.data.train).exists():
        findings.append(_prompts_finding(student, run))
    if teacher is not None:
        try:
            check_same_tokenizer(student, load_tokenizer(teacher))
            findings.append(ok("teacher tokenizer", f"the same {len(student)} ids as the student's"))
        except DataError as error:
            remedy = "take a teacher of the student's family, and copy the tokenizer files beside converted weights"
            findings.append(fail("teacher tokenizer", str(error), remedy))
    return findings


def _prompts_finding(tokenizer: Any, run: Config | NemoConfig) -> Finding:
    """Whether every training prompt is short enough, counted as the run counts it."""
    try:
        if isinstance(run, NemoConfig):
            dropped = len(long_prompts(run, tokenizer))
        else:
            problems = local_problems(run)
            dropped = len(problems) - len(encode_prompts(problems, tokenizer, run.data))
    except DataError as error:
        other = ", or set data.long_prompts=drop" if run.data.long_prompts == "refuse" else ""
        return fail("prompt length", str(error), f"raise data.max_prompt_tokens{other}")
    said = f"{dropped} of the training prompts are dropped" if dropped else "every training prompt fits"
    return ok("prompt length", f"{said}, counted with this tokenizer and its chat template")


def local_problems(run: Config) -> list[Problem]:
    """The training problems of a run of the local back end.

    Raises:
        DataError: a file, a row or a field is not there or no good.
    """
    data = run.data
    path = training_file(Path(data.train), "data.train")
    return load_problems(path, question_key=data.question_key, answer_key=data.answer_key, id_key=data.id_key)


def chat_finding(tokenizer: Any, run: Config | NemoConfig) -> Finding:
    """The chat template, and whether it knows the thinking mode that the run asks for."""
    check = "chat template"
    if tokenizer.chat_template is None:
        message = "the student's tokenizer has none"
        if isinstance(run, NemoConfig):
            return fail(check, message, "copy tokenizer_config.json (or chat_template.jinja) of an instruct model")
        return warn(check, f"{message}; prompts are plain text", "copy chat_template.jinja if that is not meant")
    try:
        thinking, plain = (rendered(tokenizer, QUESTION, system=None, thinking=mode) for mode in (True, False))
    except DataError as error:
        return fail(check, str(error), "repair the template")
    if QUESTION not in plain:
        return fail(check, "it drops the user's text", "repair the template")
    mode, chosen = ("thinking", thinking) if run.data.enable_thinking else ("non-thinking", plain)
    if thinking == plain:
        remedy = "fine for a model that never thinks; else take the template of the model's own release"
        return warn(check, f"it has no {mode} mode: enable_thinking changes nothing", remedy)
    return ok(check, f"{mode} mode, a response begins after {chosen[-24:]!r}")


def vocabulary_findings(run: Config | NemoConfig, sizes: Sizes) -> list[Finding]:
    """Output columns of both models, and what the configuration states."""
    expected = run.student.vocabulary if isinstance(run, NemoConfig) else None
    findings = []
    for role, name in (("student", run.student.model_name), ("teacher", teacher_of(run))):
        if name is None:
            continue
        check = f"{role} vocabulary"
        try:
            columns = sizes(name, role).vocabulary
        except DataError as error:
            findings.append(warn(check, str(error), "give the folder of the model"))
            continue
        if expected is None or columns == expected:
            expected = columns
            findings.append(ok(check, f"{columns} output columns"))
        else:
            remedy = "the entropy is over all columns: take models with equal vocab_size (student.vocabulary)"
            findings.append(fail(check, f"{columns} output columns, expected {expected}", remedy))
    return findings


def limits_findings(run: Config | NemoConfig, sizes: Sizes) -> list[Finding]:
    """What generation refuses: sequences beyond the model's positions, heads that vLLM's ranks cannot share."""
    try:
        shape = sizes(run.student.model_name, "student")
    except DataError:
        return []  # said with the vocabulary
    check, key, response = "generation length", "rollout.max_response_tokens", run.rollout.max_response_tokens
    longest = run.data.max_prompt_tokens + response
    finding = ok(check, f"{longest} of the student's {shape.positions} positions")
    if not isinstance(run, NemoConfig):
        return [_local_length(run, shape, sizes) or finding]
    if too_long(run, "student", shape, key, response):
        message = f"data.max_prompt_tokens + {key} = {longest}, the student was made for {shape.positions} positions"
        finding = fail(check, message, "lower one of the two")
    fault = rollout_fault(shape, run.rollout.tensor)
    return [finding] if fault is None else [finding, fail("generation ranks", fault, "nemo-uecr plan says what fits")]


def _local_length(run: Config, student: ModelShape, sizes: Sizes) -> Finding | None:
    """The local loop looks at each prompt as it is, beside responses and evaluations; None where every one fits."""
    check, prompt = "generation length", run.data.max_prompt_tokens
    demands = [("rollout.max_response_tokens", run.rollout.max_response_tokens, "student", student.positions)]
    if run.evaluation.benchmarks:
        demands.append(("evaluation.max_tokens", run.evaluation.max_tokens, "student", student.positions))
    if (teacher := teacher_of(run)) is not None:
        with contextlib.suppress(DataError):  # said with the vocabulary
            demands.append((*demands[0][:2], "teacher", sizes(teacher, "teacher").positions))
    known = [demand for demand in demands if demand[3] > 0]
    key, response, role, positions = min(known, key=lambda demand: demand[3] - demand[1], default=("", 0, "", prompt))
    left = positions - response
    if left >= prompt:
        return None
    if left <= 0:
        message = f"{key} = {response} leaves no prompt any of the {role}'s {positions} positions"
        return fail(check, message, f"lower {key}")
    return warn(
        check,
        f"beside {key} = {response}, {left} of the {role}'s {positions} positions are left for a prompt; "
        f"data.max_prompt_tokens allows {prompt}",
        f"the run refuses a longer prompt before its first step; lower {key} if there is one",
    )


def megatron_finding(key: str, folder: str) -> Finding:
    """A Megatron checkpoint in its distributed format, read as a conversion reads it: every part, every shard."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        return fail(key, f"no folder {path}", "give the folder of a Megatron checkpoint, or null")
    try:
        itself = (path / ".metadata").is_file() or ITERATION.fullmatch(path.name) is not None
        iteration = path if itself else newest_iteration(path)
        files = read_weights(MEGATRON, iteration).files
    except (CheckpointError, DataError) as error:
        return fail(key, str(error), "it was not saved to its end, or is damaged; take another one")
    return ok(key, f"{iteration}, {sum(file.suffix == '.distcp' for file in files)} shards")


def resume_findings(run_folder: str, *, nemo: bool) -> list[Finding]:
    """The newest checkpoint of the run folder, from which the run would continue."""
    checkpoints = Path(run_folder).expanduser() / "checkpoints"
    steps = {int(match[1]): path for path in checkpoints.glob("step*") if (match := _STEP.fullmatch(path.name))}
    if not steps:
        return []
    newest = steps[max(steps)]
    broken = _broken_nemo(newest) if nemo else _broken_local(newest)
    if broken is not None:
        return [fail("resume", broken, f"move {newest} away to continue from an earlier one")]
    if nemo:
        return [ok("resume", f"{newest} is complete; the run continues from it")]
    remedy = "train --resume continues from it; without it choose another run.folder"
    return [warn("resume", f"{newest} is there", remedy)]


def _broken_nemo(step: Path) -> str | None:
    if not (step / "training_info.json").is_file():
        return f"{step} has no training_info.json: it was not saved to its end"
    found = megatron_finding("resume", str(step / "policy" / "weights"))
    return found.message if found.status == "fail" else None


def _broken_local(step: Path) -> str | None:
    try:
        for name in read_object(step / "manifest.json"):
            if not (step / name).is_file():
                return f"{step / name} is missing"
            if name.endswith(".safetensors"):
                read_header(step / name)
    except DataError as error:
        return str(error)
    return None
