"""The doctor: finds what would stop or spoil a run before it starts.

Each check reports what it found and, for a warning or a failure, what to do. A `UecrError` raised by a check is a
failure with that message, which names its own remedy. Without a configuration only machine and packages are checked.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil

from nemo_uecr.config.nemo_schema import AnyConfig, NemoConfig, NemoRlEnvironment
from nemo_uecr.config.schema import Config, SelfTeacherConfig, teacher_folders, teacher_models, url_teachers
from nemo_uecr.conversion.reading import MEGATRON, find_source, read_weights
from nemo_uecr.data.manifest import check_local_problems, training_problems
from nemo_uecr.data.problems import filled, problems_of, teacher_name
from nemo_uecr.errors import DataError, UecrError, require_extra
from nemo_uecr.files import check_writable, existing, read_object
from nemo_uecr.generation import adapter, models
from nemo_uecr.generation.engines import check_engine, check_model, difference_of_ends, end_ids, unended_turn
from nemo_uecr.hosted_teacher.client import TeacherServer
from nemo_uecr.local.sequences import encode_prompts
from nemo_uecr.nemo import preflight, upstream
from nemo_uecr.plan import faults, network
from nemo_uecr.plan.contents import ASSUMED, CPU, GIB, Lengths
from nemo_uecr.plan.local import Sizes, local_plan
from nemo_uecr.plan.nemo import nemo_plan
from nemo_uecr.verifier.pool import SHARED
from nemo_uecr.verifier.rewards import Rewards

IMAGE = "nvcr.io/nvidia/nemo-rl:v0.7.0"
RAY_VENVS = Path("/opt/ray_venvs")  # of that image: an environment for each kind of worker
IMPORT_S = 180  # longest wait for an import
SHARED_MEMORY = 8 * GIB
LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "squashfs"}
LENGTHS = Lengths(prompt=1, response=1, sigma=0.0)  # they do not change the memory
QUESTION = "What is 2 + 3?"
CODE = ("config.json", "tokenizer_config.json")  # files that can name code of a model folder's own
STEP = re.compile(r"step[-_](\d+)")

# Packages with the remedy if they cannot be imported; and NeMo-RL's stack with the worker that needs each package.
PLAIN = dict.fromkeys(("torch", "pydantic", "omegaconf", "safetensors"), "pip install 'nemo-uecr[cli]'") | {
    "transformers": "pip install 'nemo-uecr[local]'",
    "math_verify": "pip install 'nemo-uecr[verify]'",
}
STACK = {
    "ray": None,
    **dict.fromkeys(("megatron.core", "megatron.bridge", "transformer_engine.pytorch"), upstream.NATIVE_WORKER_FQN),
    "vllm": upstream.VLLM_WORKER_FQN,
}

_IMPORT = """
import importlib, sys
module, top = importlib.import_module(sys.argv[1]), sys.modules[sys.argv[1].partition(".")[0]]
sys.stdout.write("\\n" + getattr(module, "__version__", getattr(top, "__version__", "can be imported")))
"""
_LOCATE_APEX = """
import importlib.util, sys
spec = importlib.util.find_spec("apex")
sys.stdout.write(spec.submodule_search_locations[0] if spec else "")
"""


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    status: Literal["ok", "warn", "fail"]
    message: str
    remedy: str  # what to do; empty when it is ok, or when the message contains it


Check = tuple[str, Callable[[], Finding | Iterable[Finding]]]


def ok(check: str, message: str) -> Finding:
    """A check that passed."""
    return Finding(check, "ok", message, "")


def ok_if(good: bool, check: str, message: str, remedy: str, bad: Literal["warn", "fail"] = "fail") -> Finding:
    """A check that passed if ``good``, else one with a remedy."""
    return ok(check, message) if good else Finding(check, bad, message, remedy)


def examine(run: AnyConfig | None, *, ray_port: int, sizes: Sizes) -> Iterator[Finding]:
    """Run every check that applies and yield each finding at once; without a run, check the machine alone."""
    yield from run_checks(_machine_checks(run, ray_port))
    if run is not None:
        yield from run_checks(_config_checks(run, sizes))


def run_checks(checks: Iterable[Check]) -> Iterator[Finding]:
    """Findings of the checks; a check that raises becomes a finding, and the others continue."""
    for check, make in checks:
        try:
            findings = make()
            yield from [findings] if isinstance(findings, Finding) else findings
        except UecrError as error:
            yield Finding(check, "fail", str(error), "")
        except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:  # raised by a library
            message = f"cannot be checked: {type(error).__name__}: {error}"
            yield Finding(check, "fail", f"{message:.400}", "fix what it names, then run doctor again")


def _machine_checks(run: AnyConfig | None, ray_port: int) -> Iterator[Check]:
    gpus, nodes, megatron, remedy = 0, 1, sys.executable, "run doctor where the GPU is, or set device=auto or cpu"
    if isinstance(run, NemoConfig):
        gpus, nodes = run.cluster.gpus_per_node, run.cluster.nodes
        megatron = worker_python(upstream.NATIVE_WORKER_FQN)
        remedy = "run doctor on a compute node (srun nemo-uecr doctor ...), or lower cluster.gpus_per_node"
    elif run is not None:
        gpus = int(run.device == "cuda")
    yield "python", lambda: ok("python", f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})")
    for module, cure in PLAIN.items():
        yield module, partial(import_finding, module, sys.executable, cure)
    if isinstance(run, NemoConfig):
        for module, worker in STACK.items():
            python = sys.executable if worker is None else worker_python(worker)
            yield module, partial(import_finding, module, python, f"use the container {IMAGE}")
        yield "nemo_rl", lambda: ok("nemo_rl", f"{upstream.check()}, signatures as expected")
    yield "apex", lambda: apex_finding(megatron)
    yield "gpus", lambda: cuda_finding(gpus, remedy)
    if run is None or isinstance(run, NemoConfig):
        yield "ray port", lambda: port_finding(ray_port)
        yield "node name", lambda: name_finding(socket.gethostname(), nodes=nodes)
        yield "shared memory", shared_memory_finding


def _config_checks(run: AnyConfig, sizes: Sizes) -> Iterator[Check]:
    total = psutil.virtual_memory().total
    yield "plan", lambda: fit_findings(run, sizes, gpu_memory=gpu_memory(), host_memory=total)
    yield "run folder", lambda: _writable_finding(Path(run.run.folder))
    yield "shared folders", lambda: shared_findings(run)
    if isinstance(run, NemoConfig) and int(os.environ.get("SLURM_STEP_NUM_NODES", "1")) > 1:
        yield "all-reduce", lambda: network_finding(Path(run.run.folder))
    yield "problems", lambda: problems_finding(run)
    yield "rewards", lambda: rewards_finding(run)
    if isinstance(run, Config):
        yield "extras", lambda: extras_finding(run)
    for key, folder in _megatron_checkpoints(run).items():
        yield key, partial(megatron_finding, key, Path(folder))
    yield "resume", lambda: resume_findings(run)
    for role, name in _models(run).items():
        yield f"{role} model", partial(model_finding, run, role, name)
    if isinstance(run, Config):
        for key in url_teachers(run):
            yield f"{key} server", partial(server_finding, run, key, sizes)
    if not any(name.startswith("demo:") for name in _models(run).values()):
        yield "student tokenizer", lambda: tokenizer_findings(run)


def _models(run: AnyConfig) -> dict[str, str]:
    return {"student": run.student.model_name} | teacher_models(run)


def _megatron_checkpoints(run: AnyConfig) -> dict[str, str]:
    if not isinstance(run, NemoConfig):
        return {}
    named = {f"{key}.megatron_checkpoint": model.megatron_checkpoint for key, model in run.active_teachers.items()}
    named["student.megatron_checkpoint"] = run.student.megatron_checkpoint
    return {key: folder for key, folder in named.items() if folder is not None}


# -- the machine -----------------------------------------------------------------------------------------------------


def worker_python(worker: str) -> str:
    """Interpreter of a NeMo-RL worker: the container's prebuilt one if it exists, else this one."""
    prebuilt = RAY_VENVS / worker / "bin" / "python"
    return str(prebuilt) if prebuilt.is_file() else sys.executable


def import_finding(module: str, python: str, remedy: str) -> Finding:
    """Whether an interpreter can import a package."""
    done = _run(python, _IMPORT, module)
    if done.returncode == 0:
        return ok(module, done.stdout.splitlines()[-1])
    reason = (done.stderr.strip().splitlines() or [f"the interpreter ended with {done.returncode}"])[-1]
    return Finding(module, "fail", f"cannot be imported by {python}: {reason}", remedy)


def apex_finding(python: str) -> Finding:
    """Whether an installed `apex` is NVIDIA's; PyPI's package of that name is a toolkit for the Pyramid framework."""
    done = _run(python, _LOCATE_APEX)
    done.check_returncode()
    good = not done.stdout or (Path(done.stdout) / "multi_tensor_apply").is_dir()
    message = f"{done.stdout or 'not installed'}{'' if good else ' is an unrelated toolkit that Megatron would import'}"
    remedy = "pip uninstall apex; NVIDIA's is built from github.com/NVIDIA/apex and not needed here"
    return ok_if(good, "apex", message, remedy)


def _run(python: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", code, *arguments], capture_output=True, encoding="utf-8", timeout=IMPORT_S, check=False
    )


def cuda_finding(needed_gpus: int, remedy: str) -> Finding:
    """Whether torch sees the GPUs that the configuration asks for."""
    import torch

    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    built = f"torch {torch.__version__} for CUDA {torch.version.cuda}" if torch.version.cuda else "torch without CUDA"
    names = sorted({torch.cuda.get_device_name(index) for index in range(seen)})
    needed = f", the run needs {needed_gpus} here" if needed_gpus else ""
    return ok_if(seen >= needed_gpus, "gpus", f"{built} sees {' '.join([str(seen), 'GPUs', *names])}{needed}", remedy)


def gpu_memory() -> int | None:
    """Bytes of the smallest GPU here; None without one."""
    import torch

    sizes = (torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count()))
    return min(sizes, default=None)


def port_finding(port: int) -> Finding:
    """Whether the Ray head's port is free."""
    if address := os.environ.get("RAY_ADDRESS"):
        return ok("ray port", f"RAY_ADDRESS={address} is set: that cluster is used")
    try:
        socket.create_server(("", port)).close()
    except OSError:
        remedy = "choose another with --ray-port (also of slurm/train_*.sbatch), or end the old Ray: ray stop"
        return Finding("ray port", "fail", f"{port} is taken on this machine", remedy)
    return ok("ray port", f"{port} is free")


def name_finding(host: str, *, nodes: int) -> Finding:
    """Whether other nodes can reach this one at the address that the launcher announces."""
    try:
        address = socket.gethostbyname(host) if nodes == 1 else network.own_address(host, alone=False)
    except (OSError, UecrError) as error:
        address = f"no address ({error})"
    good = not address.startswith("no " if nodes == 1 else ("no ", "127."))
    remedy = "give it the network's address, which other nodes can reach, in /etc/hosts or the name service"
    return ok_if(good, "node name", f"{host} is {address}", remedy)


def shared_memory_finding() -> Finding:
    """Free shared memory, which Ray's object store and NCCL use."""
    free, remedy = shutil.disk_usage("/dev/shm").free, "in a container: --ipc=host or --shm-size; else end what uses it"
    message = f"{free / GIB:.1f} GiB free in /dev/shm, Ray and NCCL want {SHARED_MEMORY // GIB}"
    return ok_if(free >= SHARED_MEMORY, "shared memory", message, remedy, "warn")


# -- what the run needs from the machine -----------------------------------------------------------------------------


def fit_findings(run: AnyConfig, sizes: Sizes, *, gpu_memory: int | None, host_memory: int) -> Iterator[Finding]:
    """Whether the planned run fits this machine (without a GPU: an H200), and its lengths fit the models."""
    if isinstance(run, NemoConfig):
        preflight.check_visible_models(run)
    try:
        known = {role: sizes(name, role) for role, name in _models(run).items()}
    except DataError as error:
        yield Finding("plan", "warn", f"memory and disk are not checked: {error}", "name a folder that is here")
        return
    gpu = ASSUMED if gpu_memory is None else replace(ASSUMED, name="GPU of this machine", memory=gpu_memory)
    if isinstance(run, NemoConfig):
        plan = nemo_plan(run, gpu, LENGTHS)
        needed, kept = plan.host_bytes, run.checkpoint.keep_last + 1
    else:
        plan = local_plan(run, gpu if run.device == "cuda" else CPU, LENGTHS, sizes=sizes)
        needed = plan.host_bytes if run.device == "cuda" else plan.fullest.size
        kept = run.checkpoint.keep_last + 1 + run.checkpoint.keep_best
        teachers = {key: known[key] for key in teacher_models(run)}
        long = faults.length_faults(run, known["student"], teachers, run.data.max_prompt_tokens)
        message = "; ".join(long) or f"prompts of up to {run.data.max_prompt_tokens} tokens fit the models' positions"
        remedy = "a local run refuses only prompts that are really too long; fine if there are none"
        hopeless = faults.length_faults(run, known["student"], teachers, 1)  # whatever the prompts
        yield ok_if(not long, "generation length", message, remedy, "fail" if hopeless else "warn")
    fullest = f"{plan.hardware}: {plan.fullest.name} takes the most, {plan.fullest.size / GIB:.1f} GiB"
    yield ok_if(not plan.faults, "plan", "; ".join(plan.faults) or fullest, "see nemo-uecr plan")
    message = f"{host_memory / GIB:.1f} GiB, the run needs {needed / GIB:.1f}"
    yield ok_if(needed <= host_memory, "host memory", message, "take smaller models, or nodes with more memory")
    free, each = shutil.disk_usage(existing(Path(run.run.folder))).free, plan.checkpoint.size
    message = f"{free / GIB:.1f} GiB free, {kept} checkpoints of {each / GIB:.2f} GiB need {kept * each / GIB:.1f}"
    remedy = "free space, lower checkpoint.keep_last, or choose another run.folder"
    yield ok_if(free >= kept * each, "disk", message, remedy)


def _writable_finding(folder: Path) -> Finding:
    check_writable(folder)
    return ok("run folder", f"{existing(folder)} can be written")


def shared_findings(run: AnyConfig) -> Iterator[Finding]:
    """Whether the nodes of a run share the file systems that they read and write."""
    if not isinstance(run, NemoConfig) or run.cluster.nodes == 1:
        return
    named = {"run.folder": run.run.folder, "data.train": run.data.train} | _megatron_checkpoints(run)
    if len(_megatron_checkpoints(run)) < len(_models(run)):
        named["HF_HOME"] = str(upstream.conversions())  # of the models' weights, made by one node for all
    named |= {f"{role}.model_name": name for role, name in _models(run).items() if Path(name).expanduser().is_dir()}
    for key, path in named.items():
        place = existing(Path(path)).resolve()
        above = [one for one in psutil.disk_partitions(all=True) if place.is_relative_to(one.mountpoint)]
        kind = max(reversed(above), key=lambda one: len(one.mountpoint)).fstype  # the last one mounted there
        remedy = "use a file system that every node mounts at the same path; this one belongs to this node alone"
        yield ok_if(kind not in LOCAL_FILE_SYSTEMS, f"shared {key}", f"{place} is on {kind}", remedy)


def network_finding(run_folder: Path) -> Finding:
    """All-reduce bandwidth of this Slurm step against InfiniBand's; on CPUs, only whether the nodes connect."""
    rate, backend = network.exchange_rate(existing(run_folder))
    expected = any(network.INFINIBAND.glob("*")) and backend == "nccl"
    message = f"{rate:.2f} GB/s between the nodes by {backend}{f', {network.FAST:g} of InfiniBand' * expected}"
    remedy = (
        f"export {network.INTERFACE}=NAME NCCL_IB_HCA=ADAPTERS before sbatch and srun, and for a container "
        "MELLANOX_VISIBLE_DEVICES=all; NCCL_DEBUG=INFO shows what NCCL takes"
    )
    return ok_if(rate >= network.FAST or not expected, "all-reduce", message, remedy, "warn")


# -- what the run reads ----------------------------------------------------------------------------------------------


def problems_finding(run: AnyConfig) -> Finding:
    """Whether the problems can be read, as the run reads them."""
    data = run.data
    if data.train.startswith("demo:"):
        return ok("problems", f"{data.train} is made once, then cached")
    if isinstance(run, NemoConfig):
        preflight.check_problems(run)
    else:
        check_local_problems(run)
    return ok("problems", f"{data.train}, fields {data.question_key!r} and {data.answer_key!r}")


def rewards_finding(run: AnyConfig) -> Finding:
    """Whether the reward functions can be loaded, as the run loads them."""
    rewards = [each for each in run.reward if not isinstance(each, NemoRlEnvironment)]
    Rewards(rewards, correct_at=run.correct_at, pool=SHARED).close()
    return ok("rewards", ", ".join(each.label for each in rewards) or "NeMo-RL's environment")


def extras_finding(run: Config) -> Finding:
    """Packages that single keys need beyond those of every run."""
    check_engine(run.rollout.engine)
    few_bits = any(getattr(teacher, "quantize", "none") != "none" for teacher in run.active_teachers.values())
    needed = {"lora": run.student.lora_rank > 0, "lowbit": few_bits or run.train.optimizer != "adamw"}
    asked = [*(extra for extra, here in needed.items() if here), *run.trackers]
    require_extra(*asked)
    return ok("extras", ", ".join([run.rollout.engine, *asked]))


def model_finding(run: AnyConfig, role: str, name: str) -> Finding:
    """Whether a folder or the hub's cache has all of a model's weights, and no code of its own."""
    folder, check = Path(name).expanduser(), f"{role} model"
    if name.startswith("demo:"):
        return ok(check, f"{name} is made once, then cached")
    check_model(str(folder))
    if not folder.is_dir():
        here = models.cached(name) is not None
        message = f"{name} is {'' if here else 'not '}in the hub's cache of this machine"
        remedy = f"hf download {name} (compute nodes often have no network), or give {role}.model_name a folder"
        return ok_if(here, check, message, remedy, "warn")
    if (base := adapter.base_of(folder)) is not None:
        return model_finding(run, role, base)
    if "model_type" not in read_object(folder / "config.json"):
        raise DataError(f"{folder / 'config.json'} does not state 'model_type'; expected a whole config.json")
    models.refuse_kernels(str(folder))
    own = [file for file in CODE if (folder / file).is_file() and "auto_map" in read_object(folder / file)]
    if own and isinstance(run, NemoConfig):
        raise DataError(
            f"{folder / own[0]} names code of its own (auto_map), which NeMo-RL would run; choose a model without"
        )
    return ok(check, f"{folder}, every weight file is complete")


def tokenizer_findings(run: AnyConfig) -> Iterator[Finding]:
    """The student's tokenizer with its chat template and prompts, and each teacher's tokenizer compared with it."""
    student, teachers = _tokenizer(run.student.model_name), teacher_folders(run)
    yield ok("student tokenizer", f"{len(student)} tokens")
    checks: list[Check] = [("chat template", lambda: chat_finding(student, run))]
    if student.chat_template is not None:
        checks.append(("end of turn", lambda: _turn_finding(student, run)))
    if Path(run.data.train).exists():
        checks.append(("prompt length", lambda: _prompts_finding(student, run)))
    own = run.student.model_name
    for key, name in teachers.items():
        sized = own if key in url_teachers(run) else name  # `server_finding` checks a server's columns
        checks.append((f"{key} tokenizer", partial(_same_tokenizer_finding, own, student, key, name, sized)))
        checks.append((f"{key} end tokens", partial(_end_tokens_finding, run, student, key, name)))
    yield from run_checks(checks)


def server_finding(run: Config, key: str, sizes: Sizes) -> Finding:
    """Whether a teacher's server passes the checks that the run makes at its start."""
    asked, name = url_teachers(run)[key], run.student.model_name
    tokenizer, columns = _tokenizer(name), sizes(name, "student").vocabulary
    server = TeacherServer(asked, columns, len(tokenizer), run.tolerances.teacher_probe, {})
    prompts = encode_prompts(training_problems(run.data), tokenizer, run.data)
    server.check(longest=max(len(prompt.token_ids) for prompt in prompts) + run.rollout.max_response_tokens)
    return ok(f"{key} server", f"{asked.url} serves {server.first['root']}, entropy: {asked.entropy}")


def _tokenizer(name: str) -> Any:
    """A tokenizer from a folder or the hub's cache, without network access."""
    return models.load_tokenizer(str(Path(name).expanduser()), local_files_only=True)


def _same_tokenizer_finding(own: str, student: Any, key: str, name: str, sized: str) -> Finding:
    teacher = _tokenizer(name)
    places = (adapter.config_place(str(Path(model).expanduser())) for model in (own, sized))
    ours, theirs = (models.output_columns(place, local_files_only=True) for place in places)
    models.check_same_tokenizer(student, teacher, (ours, theirs))
    padded = "" if ours == theirs else f"; {abs(theirs - ours)} columns of padding apart"
    return ok(f"{key} tokenizer", f"the same {len(student)} ids as the student's{padded}")


def _end_tokens_finding(run: AnyConfig, student: Any, key: str, name: str) -> Finding:
    """Whether student and teacher end a response with the same tokens, or the run states how to score that token."""
    places = (str(Path(place).expanduser()) for place in (run.student.model_name, name))
    unequal = difference_of_ends(student, *(end_ids(place, _tokenizer(place), local=True) for place in places))
    remedy = f"the teacher scores the token that ends a response low: set {key}.end_token=own or left_out"
    if isinstance(run, NemoConfig):
        remedy = "backend nemo_rl has no key for it: give both models the same eos_token_id in generation_config.json"
    settled = not unequal or getattr(run.active_teachers[key], "end_token", None) is not None
    return ok_if(settled, f"{key} end tokens", unequal or "the student's", remedy, "warn")


def chat_finding(tokenizer: Any, run: AnyConfig) -> Finding:
    """Whether the chat template keeps the user's text, and has the requested thinking mode and marks that are seen."""
    check, release = "chat template", "take tokenizer_config.json or chat_template.jinja of the model's own release"
    if tokenizer.chat_template is None:  # the local back end takes plain prompts
        bad: Literal["warn", "fail"] = "fail" if isinstance(run, NemoConfig) else "warn"
        return Finding(check, bad, "the student's tokenizer has none", release)
    thinking, plain = (models.rendered(tokenizer, QUESTION, thinking=mode) for mode in (True, False))
    if isinstance(run, NemoConfig) and (hidden := preflight.hidden_marks(run, tokenizer)):
        return Finding(check, "warn", hidden, "")
    mode, chosen = ("thinking", thinking) if run.data.enable_thinking else ("non-thinking", plain)
    if thinking == plain:
        remedy = f"fine for a model that never thinks; else {release}"
        return Finding(check, "warn", f"it has no {mode} mode: enable_thinking changes nothing", remedy)
    return ok(check, f"{mode} mode, a response begins after {chosen[-24:]!r}")


def _turn_finding(tokenizer: Any, run: AnyConfig) -> Finding:
    """Whether a response ends with the token that ends a turn in the chat template."""
    ends = end_ids(str(Path(run.student.model_name).expanduser()), tokenizer, local=True)
    fault = unended_turn(tokenizer, ends, run.rollout.stop)
    return ok_if(not fault, "end of turn", fault or "a response ends as a turn of the chat template does", "", "warn")


def _prompts_finding(tokenizer: Any, run: AnyConfig) -> Finding:
    """Whether every prompt is short enough for the run, and has the columns that its teacher's template reads."""
    if isinstance(run, NemoConfig):
        chosen = preflight.chosen_problems(run.data, run.run.seed)
        dropped = len(chosen) - len(preflight.encoded_prompts(run, chosen, tokenizer))
    else:
        problems = training_problems(run.data)
        kept = [prompt.problem for prompt in encode_prompts(problems, tokenizer, run.data)]
        dropped = len(problems) - len(kept)
        teachers = {key.removeprefix("teachers."): teacher for key, teacher in run.active_teachers.items()}
        for problem in kept if teachers else ():
            teacher = teachers[teacher_name(problem, run.routing, teachers)]
            if isinstance(teacher, SelfTeacherConfig):
                filled(teacher.prompt_template, problem)
        for name, path in run.evaluation.benchmarks.items():
            if Path(path).exists():  # `problems` reports which is missing
                encode_prompts(problems_of(run.data, path, f"evaluation.benchmarks.{name}"), tokenizer, run.data, name)
    return ok("prompt length", f"dropped as too long: {dropped}" if dropped else "every prompt fits")


def megatron_finding(key: str, folder: Path) -> Finding:
    """Whether a Megatron distributed checkpoint has every part and shard."""
    iteration = find_source(folder.expanduser()).weights
    files = read_weights(MEGATRON, iteration).files
    return ok(key, f"{iteration}, {sum(file.suffix == '.distcp' for file in files)} shards")


def resume_findings(run: AnyConfig) -> Iterator[Finding]:
    """The newest checkpoint in the run folder, from which a resumed run continues."""
    checkpoints = Path(run.run.folder).expanduser() / "checkpoints"
    steps = {int(match[1]): path for path in checkpoints.glob("step*") if (match := STEP.fullmatch(path.name))}
    if steps and isinstance(run, NemoConfig):
        yield megatron_finding("resume", steps[max(steps)])
    elif steps:
        remedy = "train --resume continues from it; without it choose another run.folder"
        yield Finding("resume", "warn", f"{steps[max(steps)]} is there", remedy)
