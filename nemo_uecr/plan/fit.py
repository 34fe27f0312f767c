"""`plan --fit`: the first rung of a ladder of keys at which a run of the local back end fits into a GPU.

Rungs are cumulative, and those that change no number come first. Each of the others leaves less on the GPU than the
one before: smaller moments, smaller weights, an adapter in place of both.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nemo_uecr.config.load import flat_values
from nemo_uecr.config.schema import Config
from nemo_uecr.plan.local import Sizes, local_plan
from nemo_uecr.plan.records import GIB, Device, Lengths, Plan

ADAPTER = {"train.optimizer": "adamw", "student.dtype": "bfloat16", "student.lora_rank": 32, "student.lora_alpha": 32}
ROUNDED = {"train.optimizer": "adamw8bit_sr", "student.dtype": "bfloat16"}

#: Keys of each rung, what they change, and whether a configuration as written has still to climb it.
RUNGS: tuple[tuple[Mapping[str, object], str, Callable[[Config], bool]], ...] = (
    ({"train.microbatch_responses": 1}, "no number beyond rounding", lambda _: True),
    ({"train.activation_checkpointing": True}, "no number", lambda run: not run.train.activation_checkpointing),
    ({"offload": "teacher"}, "no number", lambda run: run.offload == "none"),
    ({"offload": "all"}, "no number", lambda run: run.offload != "all"),
    (
        {"train.optimizer": "adamw8bit"},
        "the update, slightly: moments of 8 bits",
        lambda run: run.train.optimizer == "adamw" and not run.student.lora_rank,
    ),
    (
        ROUNDED,
        "the update: bfloat16 weights, rounded at random",
        lambda run: run.train.optimizer != "adamw8bit_sr" and not run.student.lora_rank,
    ),
    (ADAPTER, "what is trained: an adapter, at ten times the learning rate", lambda run: not run.student.lora_rank),
)


@dataclass(frozen=True)
class Rung:
    """One that was tried."""

    keys: dict[str, object]  # all that differ from the configuration as written
    added: tuple[str, ...]  # those of this rung, as they are typed
    changes: str
    plan: Plan


def climb(load: Callable[[Sequence[str]], Config], device: Device, lengths: Lengths, *, sizes: Sizes) -> list[Rung]:
    """The rungs tried, in order: the last one fits, or none does.

    Args:
        load: the configuration with these `key=value` words after its own overrides.
        device: the GPU with its memory.
        lengths: those of the times.
        sizes: a model's, from its name and role.
    """
    written = config = load([])
    tried = [Rung({}, (), "", local_plan(config, device, lengths, sizes=sizes))]
    keys: dict[str, object] = {}
    for added, changes, left in RUNGS:
        if not tried[-1].plan.misfits:
            break
        if not left(written):
            continue
        keys |= added
        if added is ADAPTER:
            keys["train.learning_rate"] = f"{10 * written.train.learning_rate:.1e}"
        before, loaded = flat_values(config), load(typed(keys))
        for room in _rooms(loaded):  # the rollout with the most room that fits, or with the least
            config = loaded.model_copy(update={"rollout": loaded.rollout.model_copy(update=room)})
            plan = local_plan(config, device, lengths, sizes=sizes)
            if not plan.misfits:
                break
        taken = {} if plan.misfits else {f"rollout.{key}": value for key, value in room.items()}
        every, after = keys | taken, flat_values(config)
        own = {key: value for key, value in every.items() if before[key] != after[key]}
        differing = {key: value for key, value in every.items() if flat_values(written)[key] != after[key]}
        tried.append(Rung(differing, tuple(typed(own)), changes, plan))
    return tried


def _rooms(config: Config) -> Iterator[Mapping[str, object]]:
    """What the rollout may take, the most first; nothing of it changes a number beyond rounding."""
    if config.rollout.engine == "vllm":
        yield from ({"gpu_memory": share / 100} for share in range(90, 8, -2))
    else:
        size = config.rollout.microbatch_responses
        yield from ({"microbatch_responses": size >> halved} for halved in range(size.bit_length()))


def typed(keys: Mapping[str, object]) -> list[str]:
    """The keys as overrides on the command line."""
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]


def fit_text(tried: Sequence[Rung], command: Sequence[str]) -> str:
    """The rungs, and of the one that fits its command and what it will need; ``command`` runs what is written."""
    keys, plan = tried[-1].keys, tried[-1].plan
    kept = [word for word in command if word.partition("=")[0] not in keys]
    lines = [plan.title, plan.hardware, "", "tried, each with the keys before it: fullest phase, what the keys change"]
    for rung in tried:
        words = f"{' '.join(rung.added) or 'a smaller rollout'} ({rung.changes})" if rung.changes else "as written"
        lines.append(f"  {rung.plan.fullest.size / GIB:>7.1f} GiB  {rung.plan.fullest.name:<15}  {words}")
    if not plan.misfits:
        lines += ["", "fits with", f"  {shlex.join([*kept, *typed(keys)])}"]
        lines += [f"  {fact}" for fact in plan.facts]
        lines += [f"  {plan.host_bytes / GIB:.1f} GiB of host memory", f"  {plan.seconds:,.0f} s a step"]
    return "\n".join(lines)
