"""Models and tokenizers: readable, complete, with the same tokens, and with the chat template that the run needs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.data.manifest import training_file
from nemo_uecr.data.models import ModelLoadError, has_hub_form, rendered
from nemo_uecr.data.models import load_tokenizer as loaded_tokenizer
from nemo_uecr.data.problems import load_problems
from nemo_uecr.doctor.findings import Finding, fail, ok, warn
from nemo_uecr.doctor.weights import broken_config, broken_weights
from nemo_uecr.errors import DataError
from nemo_uecr.files import read_object
from nemo_uecr.local.prompts import encode_prompts
from nemo_uecr.nemo_adapter.preflight import long_prompts
from nemo_uecr.plan.shards import rollout_fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from nemo_uecr.doctor.subject import Subject
    from nemo_uecr.plan.shapes import ModelShape

__all__ = ["chat_finding", "limits_finding", "model_finding", "tokenizer_findings", "vocabulary_finding"]

QUESTION = "What is 2 + 3?"


def model_finding(role: str, name: str) -> Finding:
    """Whether a model's weights are all there: every shard of a folder, or the hub's cache."""
    folder = Path(name).expanduser()
    check = f"{role} model"
    if not folder.is_dir():
        return _cached(check, role, name)
    if not (folder / "config.json").is_file():
        return fail(check, f"{folder} has no config.json", f"give {role}.model_name a Hugging Face folder")
    broken = broken_config(folder / "config.json") or broken_weights(folder)
    if broken is not None:
        return fail(check, broken, "copy the folder again, or convert the checkpoint again")
    return ok(check, f"{folder}, every weight file is complete")


def _cached(check: str, role: str, name: str) -> Finding:
    if not has_hub_form(name):
        return fail(check, f"no folder {name}", f"give {role}.model_name a folder or a hub name")
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError as error:
        return fail(check, f"no folder {name}, and no hub name: {error}", f"give {role}.model_name a folder")
    if isinstance(found, str):
        return ok(check, f"{name}, in the hub's cache {Path(found).parent}")
    return warn(
        check,
        f"{name} is not in the hub's cache of this machine",
        f"hf download {name} (compute nodes often have no network), or give {role}.model_name a folder",
    )


def load_tokenizer(name: str) -> Any:
    """A tokenizer from a folder or the hub's cache, never from the network.

    Raises:
        DataError: there is none.
    """
    folder = Path(name).expanduser()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / file).is_file():
            read_object(folder / file)
    try:
        tokenizer = loaded_tokenizer(str(folder), local_files_only=True)
    except ModelLoadError as error:
        if not folder.is_dir() and not has_hub_form(name):
            raise DataError(f"no folder {name}") from error
        if not folder.is_dir():
            raise DataError(f"{name} has no tokenizer in the hub's cache of this machine") from error
        raise DataError(f"{name}: {error.reason}") from error
    if not tokenizer("0")["input_ids"]:  # what a folder without tokenizer files gives
        raise DataError(f"{name} has a tokenizer without tokens")
    return tokenizer


def tokenizer_findings(subject: Subject) -> list[Finding]:
    """The student's tokenizer with its chat template, and the teacher's compared with it id by id."""
    try:
        student = load_tokenizer(subject.student)
    except DataError as error:
        return [fail("student tokenizer", str(error), tokenizer_remedy(subject.student))]
    findings = [ok("student tokenizer", f"{len(student)} tokens"), chat_finding(student, subject)]
    if findings[-1].status != "fail" and Path(subject.train_file).exists():
        findings.append(_prompts_finding(student, subject))
    if subject.teacher is not None:
        findings.append(_compared(student, subject.teacher))
    return findings


def _prompts_finding(tokenizer: Any, subject: Subject) -> Finding:
    """Whether every training prompt is short enough, counted as the run counts it."""
    dropped = 0
    try:
        if subject.nemo is not None:
            dropped = len(long_prompts(subject.nemo, tokenizer))
        elif subject.local is not None:
            data = subject.local.data
            problems = load_problems(
                training_file(Path(data.train), "data.train"),
                question_key=data.question_key, answer_key=data.answer_key, id_key=data.id_key,
            )  # fmt: skip
            dropped = len(problems) - len(encode_prompts(problems, tokenizer, data))
    except DataError as error:
        return fail("prompt length", str(error), "see what it names")
    said = f"{dropped} are dropped" if dropped else "every one fits"
    return ok("prompt length", f"{said}: the training prompts, counted with this tokenizer and its chat template")


def tokenizer_remedy(name: str) -> str:
    """What to do about a tokenizer that cannot be read: complete the folder, or fetch the name from the hub."""
    if Path(name).expanduser().is_dir():
        return "put tokenizer.json and tokenizer_config.json beside the weights"
    if not has_hub_form(name):
        return "give student.model_name a folder or a hub name"
    return f"hf download {name} (compute nodes often have no network), or give student.model_name a folder"


def _compared(student: Any, teacher: str) -> Finding:
    from nemo_uecr.nemo_adapter.vocabulary import check_same_tokenizer

    remedy = "take a teacher of the student's family, and copy the tokenizer files beside converted weights"
    try:
        check_same_tokenizer(student, load_tokenizer(teacher))
    except DataError as error:
        return fail("teacher tokenizer", str(error), remedy)
    return ok("teacher tokenizer", f"the same {len(student)} ids as the student's")


def chat_finding(tokenizer: Any, subject: Subject) -> Finding:
    """The chat template, and whether it knows the thinking mode that the run asks for."""
    if tokenizer.chat_template is None:
        message = "the student's tokenizer has none"
        if subject.backend == "nemo_rl":
            return fail(
                "chat template", message, "copy tokenizer_config.json (or chat_template.jinja) of an instruct model"
            )
        return warn(
            "chat template", f"{message}; prompts are plain text", "copy chat_template.jinja if that is not meant"
        )
    try:
        with_thinking, without = (rendered(tokenizer, QUESTION, system=None, thinking=mode) for mode in (True, False))
    except DataError as error:
        return fail("chat template", str(error), "repair the template")
    if QUESTION not in without:
        return fail("chat template", "it drops the user's text", "repair the template")
    mode = "thinking" if subject.enable_thinking else "non-thinking"
    if with_thinking == without:
        return warn(
            "chat template",
            f"it has no {mode} mode: enable_thinking changes nothing",
            "fine for a model that never thinks; else take the template of the model's own release",
        )
    chosen = with_thinking if subject.enable_thinking else without
    return ok("chat template", f"{mode} mode, a response begins after {chosen[-24:]!r}")


def vocabulary_finding(subject: Subject, sizes: Callable[[str, str], ModelShape]) -> list[Finding]:
    """Output columns of both models, and what the configuration states."""
    findings = []
    columns: dict[str, int] = {}
    for role, name in (("student", subject.student), ("teacher", subject.teacher)):
        if name is None:
            continue
        try:
            columns[role] = sizes(name, role).vocabulary
        except DataError as error:
            findings.append(warn(f"{role} vocabulary", str(error), "give the folder of the model"))
    expected = subject.vocabulary if subject.vocabulary is not None else columns.get("student")
    for role, count in columns.items():
        if count != expected:
            remedy = (
                "the entropy is over all columns: take models with equal vocab_size, and state it as student.vocabulary"
            )
            findings.append(fail(f"{role} vocabulary", f"{count} output columns, expected {expected}", remedy))
        else:
            findings.append(ok(f"{role} vocabulary", f"{count} output columns"))
    return findings


def limits_finding(subject: Subject, sizes: Callable[[str, str], ModelShape]) -> list[Finding]:
    """What generation refuses: sequences beyond the model's positions, heads that vLLM's ranks cannot share."""
    try:
        shape = sizes(subject.student, "student")
    except DataError:
        return []  # said with the vocabulary
    check = "generation length"
    finding = ok(check, f"{subject.longest} of the student's {shape.positions} positions")
    if subject.backend == "local":
        finding = _local_length(subject, shape.positions, sizes) or finding
    elif 0 < shape.positions < subject.longest:
        message = f"data.max_prompt_tokens + rollout.max_response_tokens = {subject.longest}"
        finding = fail(
            check, f"{message}, the student was made for {shape.positions} positions", "lower one of the two"
        )
    fault = rollout_fault(shape, subject.rollout_tensor)
    if fault is None:
        return [finding]
    return [finding, fail("generation ranks", fault, "nemo-uecr plan says what would fit")]


def _local_length(subject: Subject, positions: int, sizes: Callable[[str, str], ModelShape]) -> Finding | None:
    """The local loop looks at each prompt as it is, beside responses and evaluations; None where every one fits."""
    demands = [("rollout.max_response_tokens", subject.response, "student", positions)]
    demands.append(("evaluation.max_tokens", subject.evaluation, "student", positions))
    with contextlib.suppress(DataError):  # said with the vocabulary
        if subject.teacher is not None:
            teacher = sizes(subject.teacher, "teacher").positions
            demands.append(("rollout.max_response_tokens", subject.response, "teacher", teacher))
    prompt = subject.longest - subject.response
    known = [demand for demand in demands if demand[1] and demand[3] > 0]
    key, response, role, positions = min(known, key=lambda demand: demand[3] - demand[1], default=("", 0, "", prompt))
    left = positions - response
    if left >= prompt:
        return None
    if left <= 0:
        message = f"{key} = {response} leaves no prompt any of the {role}'s {positions} positions"
        return fail("generation length", message, f"lower {key}")
    return warn(
        "generation length",
        f"beside {key} = {response}, {left} of the {role}'s {positions} positions are left for a prompt; "
        f"data.max_prompt_tokens allows {prompt}",
        f"the run refuses a longer prompt before its first step; lower {key} if there is one",
    )
