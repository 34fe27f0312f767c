"""The same run inside NeMo-RL laid out otherwise: what would fit, the synchronous step, other splits of the GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from nemo_uecr.config.load import changed
from nemo_uecr.errors import ConfigError
from nemo_uecr.nemo.layout import Job, job_of
from nemo_uecr.nemo.recipe import section_of
from nemo_uecr.plan.contents import GIB, Device, Lengths, Overlapped, Plan, typed
from nemo_uecr.plan.nemo import nemo_plan

SUGGESTIONS = 3  # most changes suggested for a run that does not fit
SYNCHRONOUS: dict[str, object] = {"grpo.async_grpo.enabled": False}


def what_fits(job: Job, device: Device, lengths: Lengths) -> list[str]:
    """Single changes with which the run fits, as typed, gentlest first."""

    def fits(changes: Mapping[str, Any]) -> bool:
        try:
            return not nemo_plan(job_with(job, changes), device, lengths).misfits
        except ConfigError:
            return False

    return [" ".join(typed(changes)) for changes in islice(filter(fits, _single_changes(job)), SUGGESTIONS)]


def job_with(job: Job, changes: Mapping[str, Any]) -> Job:
    """The job with other values in its recipe."""
    values = changed(job.values, changes)
    return job_of(values, section_of(values))


def _single_changes(job: Job) -> Iterator[dict[str, Any]]:
    """Changes to try, of one key each; tensor ranks bring sequence parallelism."""
    yield {"policy.megatron_cfg.activation_checkpointing": True}
    if job.at("policy.sequence_packing.enabled"):
        least = job.student.packed(job.longest)
        for kind in ("train", "logprob"):
            yield {f"policy.sequence_packing.{kind}_mb_tokens": least}
    else:
        yield {"policy.train_micro_batch_size": 1}
        yield {"policy.logprob_batch_size": 1}
    yield {"policy.logprob_chunk_size": 512}
    yield {"uecr.chunk_tokens": 512}
    vllm, share = "policy.generation.vllm_cfg", job.at("policy.generation.vllm_cfg.gpu_memory_utilization")
    for other in sorted((0.4, 0.5, 0.6, 0.7, 0.8, 0.9), key=lambda each: abs(each - share)):
        yield {f"{vllm}.gpu_memory_utilization": other}
    for size in (2, 4, 8):
        for key in ("policy", *(["uecr.teacher"] if "teacher" in job.teachers else [])):
            ranks = f"{key}.megatron_cfg"
            yield {f"{ranks}.tensor_model_parallel_size": size, f"{ranks}.sequence_parallel": True}
        yield {f"{vllm}.tensor_parallel_size": size}
    for size in (2, 4, 8):
        yield {"policy.megatron_cfg.pipeline_model_parallel_size": size}
        yield {"policy.megatron_cfg.context_parallel_size": size}
        yield {"cluster.num_nodes": size * job.nodes}


# -- rollouts that go on during training ---------------------------------------------------------------------------


def synchronous_text(job: Job, overlap: Overlapped, device: Device, lengths: Lengths) -> str:
    """The overlapped step beside the synchronous one on the same GPUs, which vLLM shares if the batch lets it.

    Then more GPUs train, and where the batch cannot be shared among so many copies, tensor ranks make them fewer.
    """
    layout = "policy.megatron_cfg.tensor_model_parallel_size"
    shared: dict[str, object] = {"policy.generation.colocated.enabled": True}
    fewer = [shared | {layout: size, "policy.megatron_cfg.sequence_parallel": True} for size in (2, 4, 8)]
    for keys in (shared, *fewer, dict[str, object]()):
        try:
            seconds = nemo_plan(job_with(job, SYNCHRONOUS | keys), device, lengths).seconds
        except ConfigError:
            continue
        where = "vLLM on all of them" if keys else "vLLM on its own"
        more = f", {layout}={keys[layout]}" if layout in keys else ""
        gain = seconds / overlap.seconds
        return f"  {gain:.2f} times as fast as a synchronous step on the same GPUs, {where}{more}: {seconds:,.1f} s"
    return "  a synchronous step cannot be laid out on the same GPUs"


@dataclass(frozen=True)
class Split:
    """A number of GPUs for vLLM, and what becomes of the step."""

    keys: Mapping[str, object]
    plan: Plan | None  # None: the run cannot be laid out so
    why: str  # the first fault of it


def splits(job: Job, device: Device, lengths: Lengths) -> list[Split]:
    """Every split of the GPUs between rollout and training: of one node's, or whole nodes."""
    key, found = "policy.generation.colocated.resources", []
    count, name = (job.gpus_per_node, "gpus_per_node") if job.nodes == 1 else (job.nodes, "num_nodes")
    for own in range(1, count):
        keys = {f"{key}.{name}": own}
        try:
            plan = nemo_plan(job_with(job, keys), device, lengths)
        except ConfigError as error:
            found.append(Split(keys, None, str(error).partition(";")[0]))
        else:
            found.append(Split(keys, plan, "; ".join(plan.faults)))
    return found


def fastest(tried: Sequence[Split]) -> Split | None:
    """The split that fits with the shortest step."""
    fitting = [each for each in tried if each.plan is not None and not each.why]
    return min(fitting, key=lambda each: each.plan.seconds if each.plan else 0.0, default=None)


def splits_text(tried: Sequence[Split], device: Device) -> str:
    """A line for each split, and the keys of the fastest that fits."""
    lines = [
        f"{device.name}, {device.offered / GIB:.1f} GiB each",
        "",
        "GPUs for rollout + training: seconds of a step",
    ]
    for each in tried:
        words = " ".join(typed(each.keys))
        if each.plan is None or (step := each.plan.overlap) is None:
            lines.append(f"  {'-':>9}  {'-':>8}    {words}: {each.why}")
            continue
        half = "training" if step.training >= step.seconds - 0.05 else "rollout"
        why = f"does not fit: {each.why}" if each.why else f"the {half} half is the longer"
        gpus = f"{step.generation_gpus} + {step.training_gpus}"
        lines.append(f"  {gpus:>9}  {each.plan.seconds:>8,.1f} s  {words}: {why}")
    if (best := fastest(tried)) is not None and best.plan is not None:
        lines += ["", f"fastest: {' '.join(typed(best.keys))}, {best.plan.seconds:,.1f} s per step"]
        lines += [f"  {best.plan.assumptions[0]}"]
    return "\n".join(lines)
