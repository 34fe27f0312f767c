"""`plan --fit`: the first rung of a ladder of keys at which a run of the local back end fits into a GPU.

Rungs are cumulative, and those that change no number come first. Each of the others leaves less on the GPU than the
one before: smaller moments, smaller weights, an adapter in place of both, a teacher in few bits. A rung that shrinks no
phase that is too big is left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nemo_uecr.config.load import flat_values
from nemo_uecr.config.schema import Config, TeacherConfig
from nemo_uecr.core.methods.uecr import Puu
from nemo_uecr.plan.contents import GIB, Device, Lengths, Plan
from nemo_uecr.plan.local import Sizes, local_plan

Keys = dict[str, object]
SOLD_GB = 0.925 * GIB  # what CUDA reports for a GB on the label, at the least: 44.4 GiB of an L40S with 48
MARGIN = 3 * GIB // 2  # that stay free: torch's allocator fragments, and no plan counts that


def card(gpu: Device, size: float) -> Device:
    """A GPU of so many GB, as cards are sold, with the rates of another."""
    name = f"GPU of {size:g} GB with the rates of the {gpu.name} and {MARGIN / GIB:g} GiB left free"
    return replace(gpu, name=name, memory=int(size * SOLD_GB), spare=MARGIN)


def _rungs(run: Config) -> Iterator[tuple[Keys, str]]:
    """The keys that each adds, never undoing what the configuration says, and what they change."""
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
    """Few bits for every teacher of 16 or 32, with a floor where the method would divide by the noise."""
    teachers = {key: each for key, each in run.active_teachers.items() if isinstance(each, TeacherConfig)}
    keys: Keys = {f"{key}.quantize": quantize for key, each in teachers.items() if each.quantize == "none"}
    if keys and isinstance(run.method, Puu) and run.method.alpha:
        noise = max(noise, run.method.noise)
        keys |= {"method.scoring_noise": noise, "method.std_floor": max(round(3 * noise, 6), run.method.std_floor)}
    return keys


@dataclass(frozen=True)
class Rung:
    """A rung that was tried."""

    keys: Keys  # all that differ from the configuration as written
    added: tuple[str, ...]  # those of this rung, as they are typed
    changes: str
    plan: Plan


def climb(load: Callable[[Sequence[str]], Config], device: Device, lengths: Lengths, *, sizes: Sizes) -> list[Rung]:
    """The rungs that helped, in order: the last one fits, or none does.

    ``load`` gives the configuration with these `key=value` words after its own overrides.
    """
    written = loaded = load([])
    tried = [Rung({}, (), "", local_plan(written, device, lengths, sizes=sizes))]
    keys: Keys = {}
    for added, changes in _rungs(written):
        if not tried[-1].plan.misfits:
            break
        candidate = load(typed(keys | added))
        if len(tried) > 1 and candidate == loaded:  # it is written already
            continue
        for room in _rooms(candidate):  # the rollout with the most room that fits, or with the least
            config = candidate.model_copy(update={"rollout": candidate.rollout.model_copy(update=room)})
            plan = local_plan(config, device, lengths, sizes=sizes)
            if not plan.misfits:
                break
        if not _helps(tried[-1].plan, plan):
            continue
        keys |= added
        previous, loaded = loaded, candidate
        taken = {} if plan.misfits else {f"rollout.{key}": value for key, value in room.items()}
        first, before, after = map(flat_values, (written, previous, config))
        every = {key: value for key, value in (keys | taken).items() if after[key] != first[key]}
        own = {key: value for key, value in (keys | taken).items() if after[key] != before[key]}
        tried.append(Rung(every, tuple(typed(own)), changes, plan))
    return tried


def _helps(before: Plan, after: Plan) -> bool:
    """Whether a phase that does not fit shrinks; where all do, the cache of the rollout was too small."""
    pairs = zip(before.phases, after.phases, strict=True)
    shrunk = [new.size < old.size for old, new in pairs if old.size > (before.capacity or 0)]
    return not shrunk or any(shrunk)


def _rooms(config: Config) -> list[Keys]:
    """What the rollout may take, the most first; nothing of it changes a number beyond rounding."""
    if config.rollout.engine == "vllm":
        return [{"gpu_memory": share / 100} for share in range(90, 8, -2)]
    size = config.rollout.microbatch_responses
    return [{"microbatch_responses": size >> halved} for halved in range(size.bit_length())]


def typed(keys: Mapping[str, object]) -> list[str]:
    """The keys as overrides on the command line."""
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]


def fit_text(tried: Sequence[Rung], command: Sequence[str]) -> str:
    """The rungs tried, and for the one that fits its command and needs; ``command`` runs what is written."""
    keys, plan = tried[-1].keys, tried[-1].plan
    kept = [word for word in command if word.partition("=")[0] not in keys]
    lines = [plan.title, plan.hardware, "", "tried, each with the keys before it: fullest phase, what the keys change"]
    for rung in tried:
        words = f"{' '.join(rung.added) or 'a smaller rollout'} ({rung.changes})" if rung.changes else "as written"
        lines.append(f"  {rung.plan.fullest.size / GIB:>7.1f} GiB  {rung.plan.fullest.name:<15}  {words}")
    if not plan.misfits:
        lines += ["", "fits with", f"  {shlex.join([*kept, *typed(keys)])}"]
        taken = [rung for rung in tried if set(rung.added) & set(typed(keys))]
        lines += [f"  changes {rung.changes}" for rung in taken if not rung.changes.startswith("no number")]
        lines += [f"  {fact}" for fact in plan.facts]
        lines += [f"  {plan.host_bytes / GIB:.1f} GiB of host memory"]
        lines += [f"  {plan.seconds:,.0f} s a step", f"  {plan.assumptions[0]}"]
    return "\n".join(lines)
