"""The list of checks: what each looks at, for which kind of run, and who asks it.

The doctor asks all it can and prints a line for each; the others raise at the first refusal, and log what gives cause
for caution. A new check is a row here and a function of plain values that returns its line, or raises.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from nemo_uecr.config.schema import judged_by
from nemo_uecr.errors import UecrError
from nemo_uecr.start import folders, job, machine, memory, model_files, problem_sets
from nemo_uecr.start.facts import LocalRun, Machine, NemoRun, NemoRunWithProblems, NoRun, Run, RunWithProblems
from nemo_uecr.start.seen import Caution, Refusal, Seen

log = logging.getLogger(__name__)

#: `job` is the dry run and the start of a Slurm job, `node` its first node before Ray starts.
Asker = Literal["doctor", "config check", "job", "node", "train"]
DOCTOR: Asker = "doctor"
CONFIG: Asker = "config check"
JOB: Asker = "job"
NODE: Asker = "node"
TRAIN: Asker = "train"

S = TypeVar("S", bound=Machine)


@dataclass(frozen=True)
class Check:
    """A row of the list; see `row`."""

    name: str
    subjects: tuple[type[Machine], ...]
    askers: Collection[Asker]
    look: Callable[[Any, str], Seen]
    keys: Callable[[Any], Iterable[str]]
    after: tuple[str, ...]


def row(
    name: str,
    subjects: type[S] | tuple[type[S], ...],
    askers: Collection[Asker],
    look: Callable[[S, str], Seen],
    *,
    keys: Callable[[S], Iterable[str]] = lambda _: ("",),
    after: tuple[str, ...] = (),
) -> Check:
    """A check of some kind of run.

    Args:
        name: {} stands for a key.
        subjects: the kinds of runs that it is for: `Run` for all of them, `Machine` also without a run.
        askers: who asks it.
        look: returns a line of what it saw in the run, of a key; raises `UecrError`.
        keys: what it looks at one by one; none where it does not apply.
        after: the checks that must have passed, where they apply.
    """
    return Check(name, subjects if isinstance(subjects, tuple) else (subjects,), askers, look, keys, after)


def where(applies: Callable[[S], bool]) -> Callable[[S], Iterable[str]]:
    """Keys of a check that only some runs of its kind need."""
    return lambda run: ("",) if applies(run) else ()


CHECKS: tuple[Check, ...] = (
    # The machine.
    row("python", Machine, {DOCTOR}, lambda *_: machine.python()),
    row(
        "{}", Machine, {DOCTOR}, lambda _, name: machine.package(name, sys.executable, machine.PLAIN[name]),
        keys=lambda _: machine.PLAIN,
    ),
    row(
        "{}", NemoRun, {DOCTOR},
        lambda _, name: machine.package(name, machine.worker_python(machine.STACK[name]), machine.USE_IMAGE),
        keys=lambda _: machine.STACK,
    ),
    row("nemo_rl", NemoRun, {DOCTOR}, lambda *_: machine.nemo_rl()),
    row("apex", (NoRun, LocalRun), {DOCTOR}, lambda *_: machine.apex(sys.executable)),
    row("apex", NemoRun, {DOCTOR}, lambda *_: machine.apex(machine.worker_python("megatron"))),
    row("gpus", (NoRun, LocalRun), {DOCTOR}, lambda run, _: machine.gpus(run.gpus, machine.ELSEWHERE)),
    row("gpus", NemoRun, {DOCTOR}, lambda run, _: machine.gpus(run.gpus, machine.ON_A_NODE)),
    row("ray port", (NoRun, NemoRun), {DOCTOR}, lambda run, _: machine.ray_port(run.ray_port)),
    row("node name", (NoRun, NemoRun), {DOCTOR}, lambda run, _: machine.node_name(nodes=run.nodes)),
    row("shared memory", (NoRun, NemoRun), {DOCTOR}, lambda *_: machine.shared_memory()),
    # What a Slurm job gives the run.
    row("nodes", LocalRun, {JOB}, lambda run, _: job.one_node(run.given)),
    row("nodes", NemoRun, {JOB}, lambda run, _: job.same_gpus(run.given, nodes=run.nodes, gpus=run.gpus)),
    row("layout", NemoRun, {JOB}, lambda run, _: run.layout(False)),
    row("mounts", LocalRun, {JOB}, lambda run, _: job.mounted(run.folder, "run.folder")),
    row(
        "mounts", NemoRun, {JOB}, lambda run, key: job.mounted(Path(run.outputs[key]), key),
        keys=lambda run: run.outputs,
    ),
    row(
        "conversions", NemoRun, {JOB}, lambda run, _: job.mounted_conversions(run.conversions),
        keys=where(lambda run: None in run.megatron_checkpoints.values()),
    ),
    # Its method, and what it reads.
    row("method", Run, {DOCTOR, TRAIN}, lambda run, _: problem_sets.identities(run.method, run.tolerances)),
    row("extras", LocalRun, {DOCTOR, TRAIN}, lambda run, _: machine.extras(run.engine, run.extras)),
    row(
        "tracker", LocalRun, {DOCTOR, CONFIG, TRAIN}, lambda run, _: machine.tracker(str(run.tracker)),
        keys=where(lambda run: run.tracker is not None),
    ),
    row(
        "problems", RunWithProblems, {DOCTOR, CONFIG, NODE, TRAIN},
        lambda run, _: problem_sets.readable(run.problems, run.benchmarks, run.data),
    ),
    row(
        "enough problems", NemoRunWithProblems, {DOCTOR, CONFIG, TRAIN},
        lambda run, _: problem_sets.enough(len(run.training), run.least_problems, run.data.train), after=("problems",),
    ),
    row(
        "answers", RunWithProblems, {DOCTOR, CONFIG, NODE, TRAIN},
        lambda run, _: problem_sets.judged(
            run.problems, run.data.prompt_template, verified=run.verified, played=judged_by(run) is not None
        ),
        after=("problems",),
    ),
    row(
        "environment", RunWithProblems, {DOCTOR, CONFIG, TRAIN},
        lambda run, _: problem_sets.environment_loads(run.played, run.training_if_read, run.reward),
        keys=where(lambda run: run.environment is not None),
    ),
    row(
        "{} repeats", RunWithProblems, {DOCTOR, CONFIG, TRAIN},
        lambda run, name: problem_sets.repeated(run.problems, name, run.playing),
        keys=lambda run: run.problems, after=("problems", "environment"),
    ),
    row(
        "{} held out", LocalRun, {DOCTOR, CONFIG, TRAIN},
        lambda run, name: problem_sets.held_out(run.problems, name, run.playing),
        keys=lambda run: run.benchmarks, after=("problems", "environment"),
    ),
    row(
        "rewards", LocalRun, {DOCTOR, CONFIG},  # `train` keeps those that it starts
        lambda run, _: problem_sets.rewards_load(
            run.reward, run.training_if_read, correct_at=run.correct_at, draws_ahead=run.draws_ahead
        ),
    ),
    row(
        "rewards", NemoRunWithProblems, {DOCTOR, CONFIG, TRAIN},
        lambda run, _: problem_sets.rewards_load(
            run.reward, run.training_if_read, correct_at=run.correct_at, draws_ahead=run.draws_ahead
        ),
    ),
    # The files of its models.
    row(
        "{} model", LocalRun, {DOCTOR}, lambda run, role: model_files.whole_model(role, run.models[role]),
        keys=lambda run: run.models,
    ),
    row(
        "trainable student", LocalRun, {DOCTOR}, lambda run, _: model_files.trainable(run.student),
        keys=where(lambda run: not run.of_the_demo),
    ),
    row(
        "{} model", NemoRun, {DOCTOR}, lambda run, role: model_files.model_without_code(role, run.models[role]),
        keys=lambda run: run.models,
    ),
    # Whether it fits.
    row("layout", NemoRun, {DOCTOR, CONFIG, NODE, TRAIN}, lambda run, _: run.layout(True)),
    row("plan", Run, {DOCTOR}, lambda run, _: run.unplanned or memory.fits(run.plan), after=("layout",)),
    row(
        "generation length", LocalRun, {DOCTOR},
        lambda run, _: memory.positions(run.too_long, run.data.max_prompt_tokens),
        keys=where(lambda run: run.unplanned is None and not run.too_long(1)),  # which the plan says
    ),
    row(
        "host memory", Run, {DOCTOR}, lambda run, _: memory.host_memory(run.plan, on_gpu=run.on_gpu),
        keys=where(lambda run: run.unplanned is None), after=("layout",),
    ),
    row(
        "disk", Run, {DOCTOR}, lambda run, _: memory.disk(run.plan, run.folder, run.kept_checkpoints),
        keys=where(lambda run: run.unplanned is None), after=("layout",),
    ),
    # Its folders, and the network.
    row("run folder", Run, {DOCTOR, TRAIN}, lambda run, _: folders.writable(run.folder)),
    row(
        "shared {}", NemoRun, {DOCTOR}, lambda run, key: folders.shared(run.shared_paths[key]),
        keys=lambda run: run.shared_paths if run.nodes > 1 else (),
    ),
    row("all-reduce", NemoRun, {DOCTOR}, lambda run, _: machine.all_reduce(run.folder)),
    # Checkpoints.
    row(
        "{}.megatron_checkpoint", NemoRun, {DOCTOR},
        lambda run, role: folders.whole_checkpoint(Path(str(run.megatron_checkpoints[role]))),
        keys=lambda run: [role for role, folder in run.megatron_checkpoints.items() if folder is not None],
    ),
    row("resume", LocalRun, {DOCTOR}, lambda run, _: folders.to_resume(run.folder)),
    row("resume", NemoRun, {DOCTOR}, lambda run, _: folders.to_resume_in_nemo_rl(run.folder)),
    # Tokenizers and prompts.
    row(
        "student tokenizer", Run, {DOCTOR}, lambda run, _: f"{len(run.tokenizer)} tokens",
        keys=where(lambda run: not run.of_the_demo),
    ),
    row(
        "chat template", LocalRun, {DOCTOR},
        lambda run, _: model_files.chat_template(run.tokenizer, run.chat),
        after=("student tokenizer",),
    ),
    row(
        "chat template", NemoRunWithProblems, {DOCTOR},
        lambda run, _: model_files.chat_template_in_nemo_rl(run.tokenizer, run.chat, verified=run.verified),
        after=("student tokenizer",),
    ),
    row(
        "end of turn", Run, {DOCTOR},
        lambda run, _: model_files.ended_turn(
            run.tokenizer, model_files.ends_of(run.student, run.tokenizer), run.stop
        ),
        after=("student tokenizer",),
    ),
    row(
        "tools", LocalRun, {DOCTOR}, lambda run, _: model_files.tools(run.tokenizer, run.chat),
        keys=where(lambda run: run.environment is not None), after=("student tokenizer", "environment"),
    ),
    row(
        "turns", RunWithProblems, {DOCTOR},
        lambda run, _: model_files.turns(
            run.tokenizer, model_files.ends_of(run.student, run.tokenizer), run.chat, run.played.settings.role
        ),
        keys=where(lambda run: run.environment is not None), after=("student tokenizer", "environment"),
    ),
    row(
        "prompt length", RunWithProblems, {DOCTOR}, lambda run, _: problem_sets.dropped(run.prompts, run.training),
        keys=where(lambda run: Path(run.data.train).exists()), after=("student tokenizer", "problems"),
    ),
    row(
        "token ids", RunWithProblems, {DOCTOR},
        lambda run, _: problem_sets.known_ids(run.prompts, run.columns, run.tokenizer), after=("prompt length",),
    ),
    row(
        "enough prompts", NemoRunWithProblems, {DOCTOR},
        lambda run, _: problem_sets.enough(len(run.prompts), run.least_problems, run.data.train),
        after=("prompt length",),
    ),
    row(
        "routing", LocalRun, {DOCTOR},
        lambda run, _: problem_sets.routed(run.kept, run.routing, run.teacher_names, run.templates),
        keys=where(lambda run: bool(run.routing or run.templates)), after=("prompt length",),
    ),
    row(
        "routing", NemoRunWithProblems, {DOCTOR},
        lambda run, _: problem_sets.shares(
            problem_sets.routes(run.kept, run.prompts.values(), run.routing, run.teacher_names)
        ),
        keys=where(lambda run: run.routing is not None), after=("prompt length",),
    ),
    row(
        "{} server", LocalRun, {DOCTOR},
        lambda run, key: model_files.server(
            run.servers[key], columns=run.shapes["student"].vocabulary, ids=len(run.tokenizer),
            tolerance=run.teacher_probe, longest=run.longest_prompt + run.max_response_tokens,
        ),
        keys=lambda run: run.servers,
    ),
    row(
        "{} tokenizer", Run, {DOCTOR},
        lambda run, key: model_files.same_tokenizer(
            run.tokenizer, run.student, run.tokenizers[key], columns_of=run.models.get(key, run.student)
        ),
        keys=lambda run: run.tokenizers, after=("student tokenizer",),
    ),
    row(
        "{} end tokens", LocalRun, {DOCTOR},
        lambda run, key: model_files.same_end_tokens(
            run.tokenizer, run.student, run.tokenizers[key], settled=key in run.settled_ends,
            remedy=f"the teacher scores the token that ends a response low: set {key}.end_token=own or left_out",
        ),
        keys=lambda run: run.tokenizers, after=("student tokenizer",),
    ),
    row(
        "{} end tokens", NemoRun, {DOCTOR},
        lambda run, key: model_files.same_end_tokens(
            run.tokenizer, run.student, run.tokenizers[key], settled=False,
            remedy="NeMo-RL has no key for it: give both models the same eos_token_id in generation_config.json",
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


def asked(subject: Machine, asker: Asker) -> list[Check]:
    """The checks of a run, or of a machine alone, by who asks."""
    return [check for check in CHECKS if isinstance(subject, check.subjects) and asker in check.askers]


def examine(subject: Machine, checks: Sequence[Check]) -> Iterator[Finding]:
    """What the checks find, each at once; one that fails keeps only those that need it from their turn.

    What a library raises is a finding, too. A fault that several checks meet is told by the first, of each key.
    """
    names, passed, faults = {check.name for check in checks}, set[str](), list[tuple[Check, str]]()
    for check in checks:
        if not passed.issuperset(names.intersection(check.after)):
            continue
        for key in check.keys(subject):
            found = _finding(check.name.format(key), partial(check.look, subject, key))
            if found is None or found.status != "fail":
                passed.add(check.name.format(key))
            if found is None or any(fault in found.message for other, fault in faults if other is not check):
                continue
            faults += [(check, found.message)] if found.status == "fail" else []
            yield found


def _finding(name: str, look: Callable[[], Seen]) -> Finding | None:
    """What a check of this name finds; None where there is nothing to look at."""
    try:
        seen = look()
    except Refusal as error:
        return Finding(name, "fail", error.message, error.remedy)
    except UecrError as error:
        return Finding(name, "fail", str(error), "")
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:  # raised by a library
        message = f"cannot be checked: {type(error).__name__}: {error}"
        return Finding(name, "fail", f"{message:.400}", "fix what it names, then run doctor again")
    if isinstance(seen, Caution):
        return Finding(name, "warn", seen.message, seen.remedy)
    return None if seen is None else Finding(name, "ok", seen, "")


def require(run: Run, asker: Asker) -> dict[str, str | Caution]:
    """Raise at the first check that refuses the run; log every caution; what was seen, by check."""
    found: dict[str, str | Caution] = {}
    for check in asked(run, asker):
        for key in check.keys(run):
            seen = check.look(run, key)
            if isinstance(seen, Caution):
                log.warning("%s", seen.message)
            if seen is not None:
                found[check.name.format(key)] = seen
    return found
