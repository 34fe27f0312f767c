"""The doctor: what would stop or spoil a run, found before it starts.

A check says what it found, and with a warning or a failure what to do. One that raises a `UecrError` fails with that
message, which has the remedy in it. Without a configuration the doctor looks at the machine and the packages alone.
"""

from __future__ import annotations

import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Any

import psutil

from nemo_uecr.checkpoint.reading import ITERATION, MEGATRON, newest_iteration, read_weights
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.schema import teacher_of
from nemo_uecr.data.manifest import training_file
from nemo_uecr.data.models import (
    ModelLoadError,
    check_same_tokenizer,
    has_hub_form,
    load_pretrained,
    load_tokenizer,
    read_fields,
    read_header,
    refuse_kernels,
    rendered,
    weight_names,
)
from nemo_uecr.data.problems import Problem, load_problems
from nemo_uecr.errors import DataError, UecrError
from nemo_uecr.files import check_writable, read_object
from nemo_uecr.local.sequences import encode_prompts
from nemo_uecr.nemo.preflight import check_problems, long_prompts
from nemo_uecr.plan import machine
from nemo_uecr.plan.faults import layout_faults, mismatches_of, vocabulary_faults
from nemo_uecr.plan.local import local_plan
from nemo_uecr.plan.machine import Finding, fail, ok, warn
from nemo_uecr.plan.nemo import nemo_plan
from nemo_uecr.plan.records import CPU, GIB, GPUS, Lengths

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import AnyConfig
    from nemo_uecr.config.schema import Config
    from nemo_uecr.plan.local import Sizes
    from nemo_uecr.plan.shapes import ModelShape

__all__ = [
    "chat_finding", "examine", "fit_findings", "megatron_finding", "model_finding", "problems_finding",
    "resume_findings", "shared_findings", "tokenizer_findings",
]  # fmt: skip

LENGTHS = Lengths(prompt=1, response=1, sigma=0.0)
"""Of no influence on memory."""

LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "squashfs"}
QUESTION = "What is 2 + 3?"
CODE = ("config.json", "tokenizer_config.json")
"""Files that can name code of a model folder's own."""
STEP = re.compile(r"step[-_](\d+)")

Check = tuple[str, Callable[[], Finding | Iterable[Finding]]]


def examine(run: AnyConfig | None, *, ray_port: int, sizes: Sizes) -> Iterator[Finding]:
    """Make every check that applies, one finding after the other as they are known.

    Args:
        run: the configuration; None: the machine alone.
        ray_port: port of the Ray head.
        sizes: from a model's name and its role to its sizes.
    """
    yield from _made(_of_the_machine(run, ray_port))
    if run is not None:
        yield from _made(_of_the_run(run, sizes))


def _made(checks: Iterable[Check]) -> Iterator[Finding]:
    """Findings of the checks; one that cannot be made is a finding too, and the others go on."""
    for check, make in checks:
        try:
            found = make()
            yield from [found] if isinstance(found, Finding) else found
        except UecrError as error:
            yield fail(check, str(error), "")
        except ModuleNotFoundError as error:
            yield fail(check, f"not checked: {error.name} cannot be imported", "install it first, see the lines above")
        except (ImportError, OSError, RuntimeError, SubprocessError) as error:  # of files and packages of others
            message = f"cannot be checked: {type(error).__name__}: {error}"
            yield fail(check, f"{message:.400}", "repair what it names, then run doctor again")


def _of_the_machine(run: AnyConfig | None, ray_port: int) -> Iterator[Check]:
    nemo = isinstance(run, NemoConfig)
    gpus, nodes = 0, 1
    if isinstance(run, NemoConfig):
        gpus, nodes = run.cluster.gpus_per_node, run.cluster.nodes
    elif run is not None:
        gpus = int(run.device == "cuda")
    yield "python", machine.python_finding
    yield "packages", lambda: machine.package_findings(nemo=nemo)
    yield "apex", lambda: machine.apex_finding(machine.megatron_python() if nemo else sys.executable)
    yield "gpus", lambda: machine.cuda_finding(gpus)
    if nemo:
        yield "nemo_rl", machine.nemo_rl_finding
        yield "nccl", machine.nccl_finding
        yield "container", lambda: machine.container_finding(root=Path("/"))
    if nemo or run is None:
        yield "ray port", lambda: machine.port_finding(ray_port)
        yield "ports", lambda: machine.range_findings(machine.RANGES)
        yield "node name", lambda: machine.name_finding(socket.gethostname(), nodes=nodes)
        yield "open files", machine.files_finding
        yield "shared memory", machine.shared_memory_finding


def _of_the_run(run: AnyConfig, sizes: Sizes) -> Iterator[Check]:
    total = psutil.virtual_memory().total
    yield "plan", lambda: fit_findings(run, sizes, gpu_memory=machine.gpu_memory(), host_memory=total)
    yield "run folder", lambda: _writable_finding(Path(run.run.folder))
    yield "shared folders", lambda: shared_findings(run)
    yield "problems", lambda: problems_finding(run)
    for key, folder in _megatron_checkpoints(run).items():
        yield key, partial(megatron_finding, key, Path(folder))
    yield "resume", lambda: resume_findings(run)
    for role, name in _models(run).items():
        yield f"{role} model", partial(model_finding, run, role, name)
    if not any(name.startswith("demo:") for name in _models(run).values()):
        yield "student tokenizer", lambda: tokenizer_findings(run)


def _models(run: AnyConfig) -> dict[str, str]:
    """Role and name of each model that the run loads."""
    teacher = teacher_of(run)
    return {"student": run.student.model_name} | ({} if teacher is None else {"teacher": teacher})


def _megatron_checkpoints(run: AnyConfig) -> dict[str, str]:
    if not isinstance(run, NemoConfig):
        return {}
    named = {f"{role}.megatron_checkpoint": getattr(run, role).megatron_checkpoint for role in _models(run)}
    return {key: folder for key, folder in named.items() if folder is not None}


# -- what the run needs of the machine -------------------------------------------------------------------------------


def fit_findings(run: AnyConfig, sizes: Sizes, *, gpu_memory: int | None, host_memory: int) -> Iterator[Finding]:
    """The plan of the run against this machine: disk, GPUs and host; and whether the models fit the run.

    Args:
        run: the configuration.
        sizes: from a model's name and its role to its sizes.
        gpu_memory: bytes of the smallest GPU here; None: no GPU here, an H200 is assumed.
        host_memory: bytes of this machine.
    """
    shapes: dict[str, ModelShape] = {}
    for role, name in _models(run).items():
        try:
            shapes[role] = sizes(name, role)
        except UecrError as error:
            yield warn("plan", f"memory and disk are not checked: {error}", "name a folder that is here")
    if shapes.keys() < _models(run).keys():
        student, teacher = shapes.get("student"), shapes.get("teacher")
        known: list[str] = []
        if isinstance(run, NemoConfig):
            known = [*layout_faults(run, student, teacher), *mismatches_of(run, student, teacher)]
        elif student is not None:
            yield _length_finding(run, shapes)
        yield from (fail("plan", fault, "see nemo-uecr plan") for fault in known)
        return
    if isinstance(run, NemoConfig):
        here = None if gpu_memory is None else replace(GPUS["h200"], name="GPU of this node", memory=gpu_memory)
        plan = nemo_plan(run, here or GPUS["h200"], LENGTHS)
        needed, kept, faults = plan.host_bytes, run.checkpoint.keep_last + 1, [*plan.faults]
    else:
        plan = local_plan(run, CPU, LENGTHS, sizes=sizes)
        needed = 0 if run.device == "cuda" else plan.fullest.size
        kept = run.checkpoint.keep_last + 1 + run.checkpoint.keep_best
        faults = [*vocabulary_faults(run, shapes["student"], shapes.get("teacher"))]
        yield _length_finding(run, shapes)
    yield from (fail("plan", fault, "see nemo-uecr plan") for fault in faults)
    if not faults and (isinstance(run, NemoConfig) or run.device != "cuda"):  # a local plan knows no GPU's memory
        yield ok("plan", f"{plan.hardware}: {plan.fullest.name} takes the most, {plan.fullest.size / GIB:.1f} GiB")
    message = f"{host_memory / GIB:.1f} GiB, the run needs {needed / GIB:.1f}"
    remedy = "take smaller models, or nodes with more memory"
    yield ok("host memory", message) if needed <= host_memory else fail("host memory", message, remedy)
    free, each = shutil.disk_usage(_existing(Path(run.run.folder))).free, plan.checkpoint.size
    message = f"{free / GIB:.1f} GiB free, {kept} checkpoints of {each / GIB:.2f} GiB need {kept * each / GIB:.1f}"
    remedy = "free space, lower checkpoint.keep_last, or choose another run.folder"
    yield ok("disk", message) if free >= kept * each else fail("disk", message, remedy)


def _length_finding(run: Config, shapes: dict[str, ModelShape]) -> Finding:
    """The local loop refuses a prompt that does not fit beside a response, not what a key allows."""
    keys = {"rollout.max_response_tokens": run.rollout.max_response_tokens}
    left = {(key, role): shape.positions - keys[key] for key in keys for role, shape in shapes.items()}
    if run.evaluation.benchmarks:
        left["evaluation.max_tokens", "student"] = shapes["student"].positions - run.evaluation.max_tokens
    left = {place: tokens for place, tokens in left.items() if shapes[place[1]].positions}
    prompt = run.data.max_prompt_tokens
    (key, role), least = min(left.items(), key=lambda item: item[1], default=(("", "student"), prompt))
    if least >= prompt:
        return ok("generation length", f"prompts of up to {prompt} tokens fit the models' positions")
    message = f"beside {key}, {least} of the {role}'s {shapes[role].positions} positions are left for a prompt"
    if least <= 0:
        return fail("generation length", message, f"lower {key}")
    remedy = f"data.max_prompt_tokens allows {prompt}; the run refuses such prompts: lower {key} if there are any"
    return warn("generation length", message, remedy)


def _writable_finding(folder: Path) -> Finding:
    check_writable(folder)
    return ok("run folder", f"{_existing(folder)} can be written")


def _existing(path: Path) -> Path:
    """The path, or its nearest parent that is there."""
    path = path.expanduser().absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def shared_findings(run: AnyConfig) -> Iterator[Finding]:
    """Whether what the nodes of a run read and write lies on a file system of this node alone."""
    if not isinstance(run, NemoConfig) or run.cluster.nodes == 1:
        return
    named = {"run.folder": run.run.folder, "data.train": run.data.train} | _megatron_checkpoints(run)
    models = {f"{role}.model_name": name for role, name in _models(run).items()}
    named |= {key: name for key, name in models.items() if Path(name).expanduser().is_dir()}
    for key, path in named.items():
        place = _existing(Path(path)).resolve()
        above = [one for one in psutil.disk_partitions(all=True) if place.is_relative_to(one.mountpoint)]
        kind = max(reversed(above), key=lambda one: len(one.mountpoint)).fstype  # the last one mounted there
        if kind in LOCAL_FILE_SYSTEMS:
            remedy = "put it on a file system that every node mounts at the same path"
            yield fail(f"shared {key}", f"{place} is on {kind}, which only this node sees", remedy)
        else:
            yield ok(f"shared {key}", f"{place} is on {kind}")


# -- what the run reads ----------------------------------------------------------------------------------------------


def problems_finding(run: AnyConfig) -> Finding:
    """The training problems, read as the run reads them."""
    data = run.data
    if data.train.startswith("demo:"):
        return ok("problems", f"{data.train} is made on first use")
    if isinstance(run, NemoConfig):
        check_problems(run)
    else:
        _local_problems(run)
    return ok("problems", f"{data.train}, fields {data.question_key!r} and {data.answer_key!r}")


def _local_problems(run: Config) -> list[Problem]:
    data = run.data
    path = training_file(Path(data.train), "data.train")
    return load_problems(path, question_key=data.question_key, answer_key=data.answer_key, id_key=data.id_key)


def model_finding(run: AnyConfig, role: str, name: str) -> Finding:
    """Whether a model's weights are all there, in a folder or the hub's cache, and it brings no code of its own."""
    folder, check = Path(name).expanduser(), f"{role} model"
    if name.startswith("demo:"):
        return ok(check, f"{name} is made on first use")
    if not folder.is_dir():
        from huggingface_hub import try_to_load_from_cache

        if not has_hub_form(name):
            raise DataError(f"no folder {name}; give {role}.model_name a folder or a hub name")
        found = try_to_load_from_cache(name, "config.json")
        if isinstance(found, str):
            return ok(check, f"{name}, in the hub's cache {Path(found).parent}")
        remedy = f"hf download {name} (compute nodes often have no network), or give {role}.model_name a folder"
        return warn(check, f"{name} is not in the hub's cache of this machine", remedy)
    read_fields(folder / "config.json", prefix="").stated("model_type")
    for file in weight_names(folder):
        read_header(folder / file)
    _check_no_code(run, folder)
    return ok(check, f"{folder}, every weight file is complete")


def _check_no_code(run: AnyConfig, folder: Path) -> None:
    """Refuse what NeMo-RL would execute, and what the local back end refuses to."""
    refuse_kernels(str(folder))
    named = [file for file in CODE if (folder / file).is_file() and "auto_map" in read_object(folder / file)]
    if named and isinstance(run, NemoConfig):
        raise DataError(
            f"{folder / named[0]} names code of its own (auto_map), which NeMo-RL would run; take a model without"
        )
    if "config.json" in named:  # a tokenizer's code is met where the tokenizer is loaded
        from transformers import AutoConfig

        load_pretrained(AutoConfig, str(folder), local_files_only=True)


def tokenizer_findings(run: AnyConfig) -> Iterator[Finding]:
    """The student's tokenizer; with it the teacher's, id by id, the chat template and the prompts."""
    student, teacher = _tokenizer(run.student.model_name, "student"), teacher_of(run)
    yield ok("student tokenizer", f"{len(student)} tokens")
    checks: list[Check] = [("chat template", lambda: chat_finding(student, run))]
    if Path(run.data.train).exists():
        checks.append(("prompt length", lambda: _prompts_finding(student, run)))
    if teacher is not None:
        checks.append(("teacher tokenizer", lambda: _same_finding(student, teacher)))
    yield from _made(checks)


def _tokenizer(name: str, role: str) -> Any:
    """A tokenizer from a folder or the hub's cache, never from the network."""
    folder = Path(name).expanduser()
    try:
        tokenizer = load_tokenizer(str(folder), local_files_only=True)
    except ModelLoadError as error:
        if folder.is_dir():
            raise DataError(
                f"{name}: {error.reason}; put tokenizer.json and tokenizer_config.json beside the weights"
            ) from error
        where = "in the hub's cache of this machine; hf download it" if has_hub_form(name) else "there"
        raise DataError(f"{name} is not {where}, or give {role}.model_name a folder") from error
    if not tokenizer("0")["input_ids"]:  # what a folder without tokenizer files gives
        raise DataError(f"{name} has a tokenizer without tokens; put tokenizer.json beside the weights")
    return tokenizer


def _same_finding(student: Any, teacher: str) -> Finding:
    check_same_tokenizer(student, _tokenizer(teacher, "teacher"))
    return ok("teacher tokenizer", f"the same {len(student)} ids as the student's")


def chat_finding(tokenizer: Any, run: AnyConfig) -> Finding:
    """The chat template, and whether it knows the thinking mode that the run asks for."""
    check = "chat template"
    if tokenizer.chat_template is None:
        remedy = "copy tokenizer_config.json or chat_template.jinja of the model's own release"
        if isinstance(run, NemoConfig):
            return fail(check, "the student's tokenizer has none", remedy)
        return warn(check, "the student's tokenizer has none; prompts are plain text", remedy)
    thinking, plain = (rendered(tokenizer, QUESTION, system=None, thinking=mode) for mode in (True, False))
    if QUESTION not in plain:
        return fail(check, "it drops the user's text", "repair the template")
    mode, chosen = ("thinking", thinking) if run.data.enable_thinking else ("non-thinking", plain)
    if thinking == plain:
        remedy = "fine for a model that never thinks; else take the template of the model's own release"
        return warn(check, f"it has no {mode} mode: enable_thinking changes nothing", remedy)
    return ok(check, f"{mode} mode, a response begins after {chosen[-24:]!r}")


def _prompts_finding(tokenizer: Any, run: AnyConfig) -> Finding:
    """Whether every training prompt is short enough, counted as the run counts it."""
    if isinstance(run, NemoConfig):
        dropped = len(long_prompts(run, tokenizer))
    else:
        problems = _local_problems(run)
        dropped = len(problems) - len(encode_prompts(problems, tokenizer, run.data))
    return ok("prompt length", f"{dropped} prompts are dropped" if dropped else "every training prompt fits")


def megatron_finding(key: str, folder: Path) -> Finding:
    """A Megatron checkpoint in its distributed format, read as a conversion reads it: every part, every shard."""
    folder = folder.expanduser()
    if not folder.is_dir():
        return fail(key, f"no folder {folder}", "give the folder of a Megatron checkpoint, or null")
    itself = (folder / ".metadata").is_file() or ITERATION.fullmatch(folder.name) is not None
    iteration = folder if itself else newest_iteration(folder)
    files = read_weights(MEGATRON, iteration).files
    return ok(key, f"{iteration}, {sum(file.suffix == '.distcp' for file in files)} shards")


def resume_findings(run: AnyConfig) -> Iterator[Finding]:
    """The newest checkpoint of the run folder, from which the run would continue."""
    checkpoints = Path(run.run.folder).expanduser() / "checkpoints"
    steps = {int(match[1]): path for path in checkpoints.glob("step*") if (match := STEP.fullmatch(path.name))}
    if not steps:
        return
    newest = steps[max(steps)]
    try:
        if isinstance(run, NemoConfig):
            read_object(newest / "training_info.json")
            weights = megatron_finding("resume", newest / "policy" / "weights")
            if weights.status == "fail":
                raise DataError(weights.message)
        else:
            for name in read_object(newest / "manifest.json"):
                (newest / name).stat()
                if name.endswith(".safetensors"):
                    read_header(newest / name)
    except (UecrError, FileNotFoundError) as error:
        yield fail("resume", f"it was not saved to its end: {error}", f"move {newest} away to continue from an earlier")
        return
    if isinstance(run, NemoConfig):
        yield ok("resume", f"{newest} is complete; the run continues from it")
    else:
        remedy = "train --resume continues from it; without it choose another run.folder"
        yield warn("resume", f"{newest} is there", remedy)
