"""The list of checks: what each looks at, for which kind of run, and who asks it.

The doctor asks all it can and prints a line for each; the others raise at the first refusal, and log what gives cause
for caution. A new check is a row here and a function of plain values that returns its line, or raises.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from nemo_uecr.errors import UecrError
from nemo_uecr.start import folders, job, machine, memory, model_files, problem_sets
from nemo_uecr.start.facts import Kind, Machine, Run
from nemo_uecr.start.seen import Caution, Refusal, Seen

log = logging.getLogger(__name__)

#: `job` is the dry run and the start of a Slurm job, `node` its first node before Ray starts.
Asker = Literal["doctor", "config check", "job", "node", "train"]
DOCTOR: Asker = "doctor"
CONFIG: Asker = "config check"
JOB: Asker = "job"
NODE: Asker = "node"
TRAIN: Asker = "train"

HERE: tuple[Kind, ...] = ("machine", "local")
EVERY: tuple[Kind, ...] = ("machine", "local", "nemo_rl")
RUNS: tuple[Kind, ...] = ("local", "nemo_rl")
LOCAL: tuple[Kind, ...] = ("local",)
NEMO_RL: tuple[Kind, ...] = ("nemo_rl",)
CLUSTER: tuple[Kind, ...] = ("machine", "nemo_rl")

S = TypeVar("S", bound=Machine)
M = TypeVar("M", bound=Machine)


@dataclass(frozen=True)
class Check(Generic[S]):
    """A row of the list."""

    name: str  # {} stands for a key
    kinds: tuple[Kind, ...]
    askers: Collection[Asker]
    look: Callable[[S, str], Seen]  # of the run, and of one of its keys
    keys: Callable[[S], Iterable[str]] = lambda _: ("",)
    after: tuple[str, ...] = ()  # what it needs: other checks that have passed


def where(applies: Callable[[Run], bool]) -> Callable[[Run], Iterable[str]]:
    """Keys of a check that only some runs of its kind need."""
    return lambda run: ("",) if applies(run) else ()


OF_MACHINE: tuple[Check[Machine], ...] = (
    Check("python", EVERY, {DOCTOR}, lambda *_: machine.python()),
    Check(
        "{}", EVERY, {DOCTOR}, lambda _, name: machine.package(name, sys.executable, machine.PLAIN[name]),
        keys=lambda _: machine.PLAIN,
    ),
    Check(
        "{}", NEMO_RL, {DOCTOR},
        lambda _, name: machine.package(name, machine.worker_python(machine.STACK[name]), machine.USE_IMAGE),
        keys=lambda _: machine.STACK,
    ),
    Check("nemo_rl", NEMO_RL, {DOCTOR}, lambda *_: machine.nemo_rl()),
    Check("apex", HERE, {DOCTOR}, lambda *_: machine.apex(sys.executable)),
    Check("apex", NEMO_RL, {DOCTOR}, lambda *_: machine.apex(machine.worker_python("megatron"))),
    Check("gpus", HERE, {DOCTOR}, lambda run, _: machine.gpus(run.gpus, machine.ELSEWHERE)),
    Check("gpus", NEMO_RL, {DOCTOR}, lambda run, _: machine.gpus(run.gpus, machine.ON_A_NODE)),
    Check("ray port", CLUSTER, {DOCTOR}, lambda run, _: machine.ray_port(run.ray_port)),
    Check("node name", CLUSTER, {DOCTOR}, lambda run, _: machine.node_name(socket.gethostname(), nodes=run.nodes)),
    Check("shared memory", CLUSTER, {DOCTOR}, lambda *_: machine.shared_memory()),
)  # fmt: skip

OF_RUN: tuple[Check[Run], ...] = (
    # What a Slurm job gives it.
    Check("nodes", LOCAL, {JOB}, lambda run, _: job.one_node(run.given)),
    Check("nodes", NEMO_RL, {JOB}, lambda run, _: job.same_gpus(run.given, nodes=run.nodes, gpus=run.gpus)),
    Check("layout", NEMO_RL, {JOB}, lambda run, _: run.layout(False)),
    Check("mounts", RUNS, {JOB}, lambda run, _: job.mounted(run.folder)),
    Check(
        "conversions", NEMO_RL, {JOB}, lambda run, _: job.mounted_conversions(run.conversions),
        keys=where(lambda run: None in run.megatron_checkpoints.values()),
    ),
    # Its method, and what it reads.
    Check("method", RUNS, {DOCTOR, TRAIN}, lambda run, _: problem_sets.identities(run.method, run.tolerances)),
    Check("extras", LOCAL, {DOCTOR, TRAIN}, lambda run, _: machine.extras(run.engine, run.extras)),
    Check(
        "tracker", LOCAL, {DOCTOR, CONFIG, TRAIN}, lambda run, _: machine.tracker(str(run.tracker)),
        keys=where(lambda run: run.tracker is not None),
    ),
    Check(
        "problems", RUNS, {DOCTOR, CONFIG, NODE, TRAIN},
        lambda run, _: problem_sets.readable(run.problems, run.benchmarks, run.data),
    ),
    Check(
        "enough problems", NEMO_RL, {DOCTOR, CONFIG, TRAIN},
        lambda run, _: problem_sets.enough(len(run.training), run.least_problems, run.data.train), after=("problems",),
    ),
    Check(
        "answers", RUNS, {DOCTOR, CONFIG, NODE, TRAIN},
        lambda run, _: problem_sets.judged(run.problems, run.data.prompt_template, verified=run.verified),
        after=("problems",),
    ),
    Check(
        "{} held out", LOCAL, {DOCTOR, CONFIG, TRAIN}, lambda run, name: problem_sets.held_out(run.problems, name),
        keys=lambda run: run.benchmarks, after=("problems",),
    ),
    Check(
        "rewards", LOCAL, {DOCTOR, CONFIG},  # `train` keeps those that it starts
        lambda run, _: problem_sets.rewards_load(run.reward, run.training_if_read, correct_at=run.correct_at),
    ),
    Check(
        "rewards", NEMO_RL, {DOCTOR, CONFIG, TRAIN},
        lambda run, _: problem_sets.rewards_load(run.reward, run.training_if_read, correct_at=run.correct_at),
    ),
    # Whether it fits.
    Check("layout", RUNS, {DOCTOR, CONFIG, NODE, TRAIN}, lambda run, _: run.layout(True)),
    Check("plan", RUNS, {DOCTOR}, lambda run, _: run.unplanned or memory.fits(run.plan), after=("layout",)),
    Check(
        "generation length", LOCAL, {DOCTOR},
        lambda run, _: memory.positions(run.too_long, run.data.max_prompt_tokens),
        keys=where(lambda run: run.unplanned is None),
    ),
    Check(
        "host memory", RUNS, {DOCTOR}, lambda run, _: memory.host_memory(run.plan, on_gpu=run.device == "cuda"),
        keys=where(lambda run: run.unplanned is None), after=("layout",),
    ),
    Check(
        "disk", RUNS, {DOCTOR}, lambda run, _: memory.disk(run.plan, run.folder, run.kept_checkpoints),
        keys=where(lambda run: run.unplanned is None), after=("layout",),
    ),
    # Its folders, and the network.
    Check("run folder", RUNS, {DOCTOR, TRAIN}, lambda run, _: folders.writable(run.folder)),
    Check(
        "shared {}", NEMO_RL, {DOCTOR}, lambda run, key: folders.shared(run.shared_paths[key]),
        keys=lambda run: run.shared_paths if run.nodes > 1 else (),
    ),
    Check("all-reduce", NEMO_RL, {DOCTOR}, lambda run, _: machine.all_reduce(run.folder)),
    # Checkpoints.
    Check(
        "{}.megatron_checkpoint", NEMO_RL, {DOCTOR},
        lambda run, role: folders.whole_checkpoint(Path(str(run.megatron_checkpoints[role]))),
        keys=lambda run: [role for role, folder in run.megatron_checkpoints.items() if folder is not None],
    ),
    Check("resume", LOCAL, {DOCTOR}, lambda run, _: folders.to_resume(run.folder)),
    Check("resume", NEMO_RL, {DOCTOR}, lambda run, _: folders.to_resume_in_nemo_rl(run.folder)),
    # Models, tokenizers, prompts.
    Check(
        "{} model", LOCAL, {DOCTOR}, lambda run, role: model_files.whole_model(role, run.models[role]),
        keys=lambda run: run.models,
    ),
    Check(
        "{} model", NEMO_RL, {DOCTOR}, lambda run, role: model_files.model_without_code(role, run.models[role]),
        keys=lambda run: run.models,
    ),
    Check(
        "student tokenizer", RUNS, {DOCTOR}, lambda run, _: f"{len(run.tokenizer)} tokens",
        keys=where(lambda run: not run.of_the_demo),
    ),
    Check(
        "chat template", LOCAL, {DOCTOR},
        lambda run, _: model_files.chat_template(run.tokenizer, thinking=run.data.enable_thinking),
        after=("student tokenizer",),
    ),
    Check(
        "chat template", NEMO_RL, {DOCTOR},
        lambda run, _: model_files.chat_template_in_nemo_rl(
            run.tokenizer, thinking=run.data.enable_thinking, verified=run.verified
        ),
        after=("student tokenizer",),
    ),
    Check(
        "end of turn", RUNS, {DOCTOR},
        lambda run, _: model_files.ended_turn(
            run.tokenizer, model_files.ends_of(run.student, run.tokenizer), run.stop
        ),
        after=("student tokenizer",),
    ),
    Check(
        "prompt length", RUNS, {DOCTOR}, lambda run, _: problem_sets.dropped(run.prompts, run.training),
        keys=where(lambda run: Path(run.data.train).exists()), after=("student tokenizer", "problems"),
    ),
    Check(
        "token ids", RUNS, {DOCTOR},
        lambda run, _: problem_sets.known_ids(run.prompts, run.columns, run.tokenizer), after=("prompt length",),
    ),
    Check(
        "enough prompts", NEMO_RL, {DOCTOR},
        lambda run, _: problem_sets.enough(len(run.prompts), run.least_problems, run.data.train),
        after=("prompt length",),
    ),
    Check(
        "routing", LOCAL, {DOCTOR},
        lambda run, _: problem_sets.routed(run.kept, run.routing, run.teacher_names, run.templates),
        keys=where(lambda run: bool(run.routing or run.templates)), after=("prompt length",),
    ),
    Check(
        "routing", NEMO_RL, {DOCTOR},
        lambda run, _: problem_sets.shares(
            problem_sets.routes(run.kept, run.prompts.values(), run.routing, run.teacher_names).by_problem
        ),
        keys=where(lambda run: run.routing is not None), after=("prompt length",),
    ),
    Check(
        "{} server", LOCAL, {DOCTOR},
        lambda run, key: model_files.server(
            run.servers[key], columns=run.shapes["student"].vocabulary, ids=len(run.tokenizer),
            tolerance=run.teacher_probe, longest=run.longest_prompt + run.max_response_tokens,
        ),
        keys=lambda run: run.servers,
    ),
    Check(
        "{} tokenizer", RUNS, {DOCTOR},
        lambda run, key: model_files.same_tokenizer(
            run.tokenizer, run.student, run.tokenizers[key], columns_of=run.models.get(key, run.student)
        ),
        keys=lambda run: run.tokenizers, after=("student tokenizer",),
    ),
    Check(
        "{} end tokens", RUNS, {DOCTOR},
        lambda run, key: model_files.same_end_tokens(
            run.tokenizer, run.student, run.tokenizers[key], settled=key in run.settled_ends,
            remedy=run.ends_remedy.format(key),
        ),
        keys=lambda run: run.tokenizers, after=("student tokenizer",),
    ),
)  # fmt: skip


# Who asks.


@dataclass(frozen=True)
class Finding:
    """What the doctor prints of one check."""

    check: str
    status: Literal["ok", "warn", "fail"]
    message: str
    remedy: str  # what to do; empty when it is ok, or when the message contains it


def examine(subject: Machine) -> Iterator[Finding]:
    """The doctor: every check that applies, each finding at once; a check that fails does not keep another from it."""
    yield from findings(OF_MACHINE, subject, DOCTOR)
    if isinstance(subject, Run):
        yield from findings(OF_RUN, subject, DOCTOR)


def findings(checks: Iterable[Check[M]], subject: M, asker: Asker) -> Iterator[Finding]:
    """What the checks find, whether they pass or not; what a library raises is a finding too."""
    passed = set[str]()
    for check in checks:
        if subject.kind not in check.kinds or asker not in check.askers or not passed.issuperset(check.after):
            continue
        for key in check.keys(subject):
            name = check.name.format(key)
            try:
                seen = check.look(subject, key)
            except Refusal as error:
                yield Finding(name, "fail", error.message, error.remedy)
            except UecrError as error:
                yield Finding(name, "fail", str(error), "")
            except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:  # raised by a library
                message = f"cannot be checked: {type(error).__name__}: {error}"
                yield Finding(name, "fail", f"{message:.400}", "fix what it names, then run doctor again")
            else:
                passed.add(name)
                if isinstance(seen, Caution):
                    yield Finding(name, "warn", seen.message, seen.remedy)
                elif seen is not None:
                    yield Finding(name, "ok", seen, "")


def require(run: Run, asker: Asker) -> dict[str, str | Caution]:
    """Raise at the first check that refuses the run; log every caution; what was seen, by check."""
    found: dict[str, str | Caution] = {}
    for check in OF_RUN:
        if run.kind not in check.kinds or asker not in check.askers:
            continue
        for key in check.keys(run):
            seen = check.look(run, key)
            if isinstance(seen, Caution):
                log.warning("%s", seen.message)
            if seen is not None:
                found[check.name.format(key)] = seen
    return found
