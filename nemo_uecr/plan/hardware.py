"""Limits of devices, and the share of them that each phase is assumed to reach."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_uecr.plan.records import GIB

__all__ = ["CPU", "EFFICIENCY", "GPUS", "Device", "Efficiency"]


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
