"""What a plan is computed from: limits of the devices, lengths, and for NeMo-RL the models on their ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_uecr.config.schema import teacher_of
from nemo_uecr.plan.records import GIB
from nemo_uecr.plan.shapes import Grid, ModelShape, grid_of, shape_of

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import NemoConfig

__all__ = ["CPU", "EFFICIENCY", "GPUS", "Device", "Efficiency", "Lengths", "Setting", "setting_of"]


@dataclass(frozen=True)
class Device:
    """What one device sustains. All of it is assumption until it is measured on the machine of the run."""

    name: str

    memory: int | None
    """Bytes that a process can allocate; None: not known beforehand."""

    flops: float
    """Dense matrix FLOP/s in bfloat16 that large products sustain; on a CPU, float32 of one thread."""

    bandwidth: float
    """Bytes/s of device memory that a streaming kernel sustains."""

    host_link: float
    """Bytes/s between this device and host memory."""

    peer_link: float
    """Bytes/s between devices of a node, each direction."""

    network: float
    """Bytes/s between nodes for each device."""


# Matrix and memory rates of H100 and A100 take the share of the vendor's peak that the H200's have: 0.8 and 0.9.
GPUS: dict[str, Device] = {
    "h200": Device("H200", 139 * GIB, 790e12, 4.3e12, 25e9, 300e9, 40e9),
    "h100": Device("H100 80 GB", 79 * GIB, 790e12, 3.0e12, 25e9, 300e9, 40e9),
    "a100": Device("A100 80 GB", 79 * GIB, 250e12, 1.8e12, 12e9, 200e9, 20e9),
}

CPU = Device("CPU", None, 40e9, 10e9, 10e9, 10e9, 1e9)


@dataclass(frozen=True)
class Efficiency:
    """Shares of the device's limits that are reached."""

    decode: float
    """Of memory bandwidth while generating."""

    decode_step: float
    """Seconds of a decoding step besides what it reads: vLLM's scheduler, launches, sampling."""

    forward: float
    """Of FLOP/s while scoring."""

    train: float
    """Of FLOP/s while training."""

    process_bytes: int
    """Bytes of each GPU process besides its tensors: CUDA context, libraries, NCCL."""

    vllm_bytes: int
    """Bytes of vLLM besides weights and KV cache: activations of its largest batch, CUDA graphs."""


EFFICIENCY = Efficiency(
    decode=0.50, decode_step=0.003, forward=0.45, train=0.40, process_bytes=3 * GIB // 2, vllm_bytes=3 * GIB
)


@dataclass(frozen=True)
class Lengths:
    """Tokens that the times are computed for; memory always takes the longest."""

    prompt: int
    """Mean."""

    response: int
    """Mean, responses that are cut at the longest included."""

    sigma: float
    """Standard deviation of the logarithm of a response's length before the cut; 0: all have the mean."""

    @property
    def whole(self) -> int:
        """Prompt and response."""
        return self.prompt + self.response

    def said(self, cut: int) -> str:
        """The lengths in words; a mean that is the cut leaves no tail."""
        if self.response == cut:
            return (
                f"every response of {cut} tokens, the longest, after prompts of {self.prompt} (times: an upper bound; "
                "--response-tokens MEAN gives a rollout with its tail)"
            )
        return (
            f"responses of {self.response} tokens on average, lognormal with sigma {self.sigma:g} and cut at {cut}, "
            f"after prompts of {self.prompt} (times)"
        )


@dataclass(frozen=True)
class Setting:
    """A validated configuration with the sizes of its models and the limits of its devices."""

    config: NemoConfig
    student: ModelShape
    grid: Grid
    """The student's."""

    teacher: ModelShape | None
    """None where the method reads no teacher."""

    teacher_grid: Grid | None
    device: Device
    efficiency: Efficiency
    lengths: Lengths

    @property
    def responses(self) -> int:
        """B."""
        return self.config.rollout.prompts_per_step * self.config.rollout.responses_per_prompt

    @property
    def capacity(self) -> int:
        """Bytes that each GPU offers."""
        return self.device.memory or 0

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with the longest response."""
        return self.config.longest

    @property
    def dedicated(self) -> bool:
        """Whether the teacher has GPUs of its own."""
        return self.config.teacher.dedicated_gpus > 0

    @property
    def processes(self) -> int:
        """Worker processes on each student GPU: student, vLLM, and a colocated teacher."""
        return 2 if self.teacher is None or self.dedicated else 3

    @property
    def replicas(self) -> int:
        """Independent vLLM engines."""
        return self.grid.ranks // self.config.rollout.tensor

    @property
    def reference(self) -> bool:
        """Whether the initial student is kept for the reference KL."""
        return self.config.loss.reference_kl > 0


def setting_of(config: NemoConfig, device: Device, efficiency: Efficiency, lengths: Lengths) -> Setting:
    """Look up the models' sizes and lay them out.

    Raises:
        DataError: the sizes of a model are not known.
    """
    teacher = teacher_grid = None
    if (name := teacher_of(config)) is not None:
        teacher, teacher_grid = shape_of(name, role="teacher"), grid_of(config.teacher.parallel, config.teacher_gpus)
    return Setting(
        config=config,
        student=shape_of(config.student.model_name, role="student"),
        grid=grid_of(config.student.parallel, config.student_gpus),
        teacher=teacher,
        teacher_grid=teacher_grid,
        device=device,
        efficiency=efficiency,
        lengths=lengths,
    )
