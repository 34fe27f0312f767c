"""`plan --fit`: the keys with which a run of the local back end fits into one GPU.

Changes are added one after the other until the run fits, first those that change no number. Each later one leaves less
on the GPU than the one before: smaller moments, smaller weights, an adapter instead of both, a teacher in few bits. A
change that does not shrink a phase that is too big is skipped.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from nemo_uecr.config.load import flat_values
from nemo_uecr.config.schema import Config, TeacherConfig
from nemo_uecr.core.methods.uecr import Puu
from nemo_uecr.plan.contents import GIB, GPUS, Device, Lengths, Plan, typed
from nemo_uecr.plan.local import Sizes, local_plan

Keys = dict[str, object]
REPORTED_PER_GB = 0.925 * GIB  # least bytes that CUDA reports per GB on the label: 44.4 GiB for an L40S of 48 GB
MARGIN = 3 * GIB // 2  # left free for the fragmentation of torch's allocator, which no plan counts


def gpu_of_size(size: float, rates: Device | None) -> Device:
    """A GPU of ``size`` GB as sold, with the rates of another, by default the one of the nearest size."""
    memory = int(size * REPORTED_PER_GB)
    gpu = rates or min(GPUS.values(), key=lambda each: abs((each.memory or 0) - size * REPORTED_PER_GB))
    name = f"GPU of {size:g} GB with the rates of the {gpu.name} and {MARGIN / GIB:g} GiB left free"
    return replace(gpu, name=name, memory=memory, spare=MARGIN)


def _changes(run: Config) -> Iterator[tuple[Keys, str]]:
    """The keys of each change in order, never undoing the configuration's own, and what it changes in the results."""
    yield {"train.microbatch_responses": 1}, "no number beyond rounding"
    yield {"train.activation_checkpointing": True}, "no number"
    if run.offload == "none":
        yield {"offload": "teacher"}, "no number"
    yield {"offload": "all"}, "no number"
    if not run.student.lora_rank:
        low: Keys = {"student.dtype": "bfloat16"}
        if run.train.optimizer == "adamw":
            yield {"train.optimizer": "adamw8bit"}, "the update, slightly: moments of 8 bits"
        yield {"train.optimizer": "adamw8bit_sr", **low}, "the update: bfloat16 weights, rounded at random"
        rate = f"{10 * run.train.learning_rate:.1e}"
        adapter: Keys = {"train.optimizer": "adamw", "student.lora_rank": 32, "student.lora_alpha": 32.0}
        yield adapter | low | {"train.learning_rate": rate}, "what is trained, at ten times the learning rate"
    for quantize, noise in (("int8", 0.01), ("nf4", 0.05)):
        yield _few_bits(run, quantize, noise), "the scores: give the noise that `audit teacher` measures"


def _few_bits(run: Config, quantize: str, noise: float) -> Keys:
    """Few bits for every teacher of 16 or 32, and a floor if the method would divide by their noise."""
    teachers = {key: each for key, each in run.active_teachers.items() if isinstance(each, TeacherConfig)}
    keys: Keys = {f"{key}.quantize": quantize for key, each in teachers.items() if each.quantize == "none"}
    if keys and isinstance(run.method, Puu) and run.method.alpha:
        noise = max(noise, run.method.noise)
        keys |= {"method.scoring_noise": noise, "method.std_floor": max(round(3 * noise, 6), run.method.std_floor)}
    return keys


@dataclass(frozen=True)
class Attempt:
    """A planned run with the changes so far."""

    keys: Keys  # all changes to the configuration as written
    added: tuple[str, ...]  # the last change, as typed
    changes: str  # what it changes in the results
    plan: Plan


def attempts_to_fit(
    load: Callable[[Sequence[str]], Config], device: Device, lengths: Lengths, *, sizes: Sizes
) -> list[Attempt]:
    """The run as written and with each change that helped, in order; the last one fits, unless none does.

    ``load`` returns the configuration with additional `key=value` words.
    """
    written = loaded = load([])
    tried = [Attempt({}, (), "", local_plan(written, device, lengths, sizes=sizes))]
    keys: Keys = {}
    for added, changes in _changes(written):
        if not tried[-1].plan.misfits:
            break
        candidate = load(typed(keys | added))
        if len(tried) > 1 and candidate == loaded:  # already written
            continue
        for rollout in _rollout_sizes(candidate):  # the largest that fits, or the smallest
            config = candidate.model_copy(update={"rollout": candidate.rollout.model_copy(update=rollout)})
            plan = local_plan(config, device, lengths, sizes=sizes)
            if not plan.misfits:
                break
        if not _helps(tried[-1].plan, plan):
            continue
        keys |= added
        previous, loaded = loaded, candidate
        taken = {} if plan.misfits else {f"rollout.{key}": value for key, value in rollout.items()}
        first, before, after = map(flat_values, (written, previous, config))
        every = {key: value for key, value in (keys | taken).items() if after[key] != first[key]}
        own = {key: value for key, value in (keys | taken).items() if after[key] != before[key]}
        tried.append(Attempt(every, tuple(typed(own)), changes, plan))
    return tried


def _helps(before: Plan, after: Plan) -> bool:
    """Whether a phase that does not fit shrinks; if all fit, the rollout's cache was too small."""
    pairs = zip(before.phases, after.phases, strict=True)
    shrunk = [new.size < old.size for old, new in pairs if old.size > (before.capacity or 0)]
    return not shrunk or any(shrunk)


def _rollout_sizes(config: Config) -> list[Keys]:
    """Keys of the memory that the rollout gets, most first; they change no number beyond rounding."""
    if config.rollout.engine == "vllm":
        return [{"gpu_memory": share / 100} for share in range(90, 8, -2)]
    size = config.rollout.microbatch_responses
    return [{"microbatch_responses": size >> halved} for halved in range(size.bit_length())]


def fit_text(tried: Sequence[Attempt], command: Sequence[str]) -> str:
    """What was tried, and command and needs of the one that fits; ``command`` runs the configuration as written."""
    keys, plan = tried[-1].keys, tried[-1].plan
    kept = [word for word in command if word.partition("=")[0] not in keys]
    lines = [plan.title, plan.hardware, "", "tried, each with the keys before it: fullest phase, what the keys change"]
    for attempt in tried:
        words = (
            f"{' '.join(attempt.added) or 'a smaller rollout'} ({attempt.changes})" if attempt.changes else "as written"
        )
        lines.append(f"  {attempt.plan.fullest.size / GIB:>7.1f} GiB  {attempt.plan.fullest.name:<15}  {words}")
    if not plan.misfits:
        lines += ["", "fits with", f"  {shlex.join([*kept, *typed(keys)])}"]
        taken = [attempt for attempt in tried if set(attempt.added) & set(typed(keys))]
        lines += [f"  changes {attempt.changes}" for attempt in taken if not attempt.changes.startswith("no number")]
        lines += [f"  {fact}" for fact in plan.facts]
        lines += [f"  {plan.host_bytes / GIB:.1f} GiB of host memory"]
        lines += [f"  {plan.seconds:,.0f} s per step", f"  {plan.assumptions[0]}"]
    return "\n".join(lines)
