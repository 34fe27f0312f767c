"""The plan of a run: the devices and lengths it assumes, its parts, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

GIB, MEBI = 2**30, 2**20

# Shares of a device's limits that real runs reach; tests/plan/test_published.py has each run with its source: runs of
# few sequences on one GPU for the weights, NeMo-RL's rollouts of 2048 responses for keys and values, and its
# "get logprobs" and "policy training" of an 8B model (NeMo-RL issue 959).
WEIGHTS_SHARE = 0.70  # of memory bandwidth while a decoding step reads the weights
CACHE_SHARE = 0.50  # of memory bandwidth while it reads keys and values
FORWARD_SHARE = 0.50  # of FLOP/s while scoring
TRAIN_SHARE = 0.45  # of FLOP/s while training
# Of FLOP/s by mixtures of experts, whose small matrices, permutations and uneven ranks take the rest: chosen so that
# NeMo-RL's tables of whole steps of Qwen3-30B-A3B and 235B-A22B come out; nobody has published the two apart.
EXPERT_FORWARD_SHARE = 0.20
EXPERT_TRAIN_SHARE = 0.20
REACHED = (
    f"reached: {WEIGHTS_SHARE:.0%} of bandwidth for weights and {CACHE_SHARE:.0%} for keys and values while "
    f"generating, {FORWARD_SHARE:.0%} of FLOP/s while scoring, {TRAIN_SHARE:.0%} while training"
)


def forward_share(*, mixture: bool) -> float:
    """Share of FLOP/s that a scoring pass reaches."""
    return EXPERT_FORWARD_SHARE if mixture else FORWARD_SHARE


def train_share(*, mixture: bool) -> float:
    """Share of FLOP/s that training reaches."""
    return EXPERT_TRAIN_SHARE if mixture else TRAIN_SHARE


LAYOUT_LINES = 16  # most lines printed of the layout


@dataclass(frozen=True)
class Device:
    """Memory and sustained rates of one device."""

    name: str
    memory: int | None  # bytes that CUDA reports and vLLM takes its share of; None: unknown
    flops: float  # dense bfloat16 FLOP/s of large matrix products; on a CPU, float32 of one thread
    bandwidth: float  # memory bytes/s of a streaming kernel
    host_link: float  # bytes/s to and from host memory
    peer_link: float  # bytes/s between devices of a node, each direction
    network: float  # bytes/s per device between nodes
    spare: int = 0  # bytes to leave free

    @property
    def offered(self) -> int:
        """Bytes that a phase may use; 0 if unknown."""
        return (self.memory or 0) - self.spare

    def forward_s(self, flops: float, devices: int, share: float = FORWARD_SHARE) -> float:
        """Seconds of a forward pass at a share of FLOP/s; for a CPU, ``devices`` counts threads."""
        return flops / (devices * self.flops * share)

    def train_s(self, flops: float, devices: int, share: float = TRAIN_SHARE) -> float:
        """Seconds of training."""
        return flops / (devices * self.flops * share)

    def decode_s(self, weights: float, cached: float, flops: float, devices: int) -> float:
        """Seconds of generation: the longer of reading these bytes of weights, keys and values, and of computing."""
        read = weights / (self.bandwidth * WEIGHTS_SHARE) + cached / (self.bandwidth * CACHE_SHARE)
        return max(read, self.forward_s(flops, devices))


# Matrix and memory rates of the others are the vendor's peak times the H200's share of it, 0.8 and 0.9.
# The H200's host link is measured, both directions, with pinned memory (docs/benchmarks.md).
GPUS: dict[str, Device] = {
    "h200": Device("H200", int(139.8 * GIB), 790e12, 4.3e12, 55e9, 300e9, 40e9),
    "h100": Device("H100 80 GB", int(79.1 * GIB), 790e12, 3.0e12, 25e9, 300e9, 40e9),
    "a100": Device("A100 80 GB", int(79.1 * GIB), 250e12, 1.8e12, 12e9, 200e9, 20e9),
    "l40s": Device("L40S", int(44.4 * GIB), 290e12, 0.78e12, 25e9, 25e9, 20e9),
    "rtx4090": Device("RTX 4090", int(23.6 * GIB), 130e12, 0.9e12, 25e9, 25e9, 20e9),
}
ASSUMED = replace(GPUS["h200"], name="H200 (assumed: plan --device names another)")
CPU = Device("CPU", None, 40e9, 10e9, 10e9, 10e9, 1e9)


@dataclass(frozen=True)
class Lengths:
    """Sequence lengths for the times, in tokens; memory always assumes the longest."""

    prompt: int  # mean
    response: int  # mean, truncated responses included
    sigma: float  # standard deviation of ln(response length) before truncation; 0: all have the mean

    @property
    def whole(self) -> int:
        """Mean tokens of prompt and response."""
        return self.prompt + self.response

    def described(self, cut: int) -> str:
        """The lengths in words; a mean equal to the cut leaves no tail."""
        if self.response == cut:
            return (
                f"every response of {cut} tokens, the longest, after prompts of {self.prompt} (times: an upper bound; "
                "--prompt-tokens MEAN --response-tokens MEAN give those of your data)"
            )
        return (
            f"responses of {self.response} tokens on average, lognormal with sigma {self.sigma:g} and cut at {cut}, "
            f"after prompts of {self.prompt} (times)"
        )


@dataclass(frozen=True)
class Item:
    """One part of the memory in use."""

    name: str
    size: int  # bytes
    how: str  # how the size was computed


@dataclass(frozen=True)
class Phase:
    """A part of a step."""

    name: str
    where: str  # the working devices: "student GPUs", "teacher GPUs", "every GPU", "the device"
    device: tuple[Item, ...]  # on each working device, or on the fullest
    seconds: float
    how: str  # how the seconds were computed
    waiting: float = 0.0  # seconds that the average device waits for the slowest

    @property
    def size(self) -> int:
        return sum(item.size for item in self.device)


@dataclass(frozen=True)
class RankLine:
    """What one device holds."""

    node: int
    device: int
    student: str
    teacher: str
    rollout: str


@dataclass(frozen=True)
class Overlapped:
    """A step in which rollouts go on while the student trains, in its steady state."""

    age: int  # updates by which a response may be older than the policy that it trains
    in_flight: bool  # whether weights change in mid-response
    training_gpus: int
    generation_gpus: int
    seconds: float  # of a step
    training: float  # of the training half: scoring, update, refit
    rollout: float  # of the rollout half, where it never waits for the other
    idle: float  # share of the time in which an engine has no response
    policies: float  # that a response comes from, on average
    most_policies: int


@dataclass(frozen=True)
class Plan:
    """Layout, memory and time of one run."""

    title: str
    hardware: str  # the device and its limits
    capacity: int | None  # usable bytes of a device; None: unknown
    layout: tuple[RankLine, ...]
    phases: tuple[Phase, ...]
    host: tuple[Item, ...]  # host memory of the fullest node
    checkpoint: Item  # disk space of one checkpoint
    facts: tuple[str, ...]  # batch arithmetic, one sentence each
    assumptions: tuple[str, ...]
    faults: tuple[str, ...]  # why it cannot run, one sentence each
    mismatches: tuple[str, ...]  # faults that no layout cures: lengths and vocabularies
    overlap: Overlapped | None = None  # None: a step's phases follow one another

    @property
    def misfits(self) -> bool:
        """Whether something does not fit into memory; another layout may."""
        return len(self.faults) > len(self.mismatches)

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases) if self.overlap is None else self.overlap.seconds

    @property
    def waiting(self) -> float:
        """Share of the devices' time in a step spent waiting for the slowest one."""
        return 0.0 if self.overlap else sum(phase.waiting for phase in self.phases) / self.seconds

    @property
    def fullest(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.size)

    @property
    def host_bytes(self) -> int:
        return sum(item.size for item in self.host)


def typed(keys: Mapping[str, object]) -> list[str]:
    """Changed keys as command-line overrides."""
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values; sizes in bytes, times in seconds."""
    values = asdict(plan)
    for given, phase in zip(values["phases"], plan.phases, strict=True):
        given["size"] = phase.size
    return values | {"seconds": plan.seconds, "waiting": plan.waiting, "fits": not plan.faults}


def plan_text(plan: Plan, beside: str = "") -> str:
    """The whole plan as text; ``beside`` compares an overlapped step with the synchronous one."""
    layout = [
        f"node {line.node} device {line.device}: student {line.student} | teacher {line.teacher} | {line.rollout}"
        for line in plan.layout
    ]
    if (more := len(layout) - LAYOUT_LINES) > 0:
        layout[LAYOUT_LINES - 1 : -1] = [f"... {more} more; --json lists them all ..."]
    lines = [plan.title, plan.hardware, "", "batch", *_indented(plan.facts), "", "layout", *_indented(layout), ""]
    lines += ["phases of a step: memory of each device, seconds"]
    share = "" if plan.capacity is None else f" of {_size(plan.capacity)}"
    for phase in plan.phases:
        lines.append(f"  {phase.name:<18}{_size(phase.size) + share:>26} {phase.seconds:>10,.1f} s   {phase.how}")
        lines += (f"    {line}" for line in _items(phase.device))
    waiting = f"   {plan.waiting:.0%} of the GPUs' time waits in the rollout's tail" if plan.waiting >= 0.01 else ""
    lines.append(f"  {'whole step':<18}{plan.seconds:>27,.1f} s{waiting}")
    if plan.overlap is not None:
        lines += [*_overlap(plan.overlap), beside]
    lines += ["", "host memory of each machine, besides device memory", *_items(plan.host)]
    lines += [f"  {'together':<28}{_size(plan.host_bytes):>12}"]
    lines += ["", f"disk: {_size(plan.checkpoint.size)} per checkpoint ({plan.checkpoint.how})"]
    lines += ["", "assumed", *_indented(plan.assumptions)]
    return "\n".join(lines) + "\n"


def _overlap(step: Overlapped) -> list[str]:
    """The two halves of the step, and which of them waits."""
    waits = max(0.0, step.seconds - step.training)
    how = "weights change in mid-response" if step.in_flight else "a refit waits for the responses under way"
    rows = {
        "training": (
            step.training,
            step.training_gpus,
            f"score, update, refit; then waits {waits:,.1f} s for responses",
        ),
        "rollout": (
            step.rollout,
            step.generation_gpus,
            f"if it never waits; an engine is idle {step.idle:.0%} of a step",
        ),
    }
    return [
        "",
        f"the halves of a step, side by side: responses up to {step.age} updates old, {how}",
        *(
            f"  {name:<18}{f'{gpus} GPUs':>26} {seconds:>10,.1f} s   {words}"
            for name, (seconds, gpus, words) in rows.items()
        ),
        f"  a response comes from {step.policies:.2f} policies on average, from {step.most_policies} at most",
    ]


def _items(items: Iterable[Item]) -> list[str]:
    return [f"  {item.name:<28}{_size(item.size):>12}   {item.how}" for item in items]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _size(size: int) -> str:
    return f"{size / GIB:,.2f} GiB" if size >= GIB / 10 else f"{size / MEBI:,.2f} MiB"
