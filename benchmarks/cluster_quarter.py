"""The parts of a quarter of an hour of NeMo-RL's Megatron path on one GPU: `tools/cluster_quarter.sh` calls it.

    python -m benchmarks.cluster_quarter first OUT --work DIR [--device cpu] --seconds 460

`quarter` runs them. What they do is in `cluster_parts`; the whole loop is tests/gpu/one_gpu.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks import quarter
from benchmarks.quarter import Part, check_sizes, tree_bytes


def part(name: str, table: str, limit: float, work: Path, device: str) -> Part:
    """One of `cluster_parts`; in the first, Transformer Engine says in the log which attention it takes."""
    words = "-m", "benchmarks.cluster_parts", name, str(work), "--device", device
    said = {"NVTE_DEBUG": "1", "NVTE_DEBUG_LEVEL": "1"} if name == "stack" else {}
    return Part(name, table, words, limit, environment=said)


def first_parts(work: Path, device: str) -> list[Part]:
    """Those of the first call: what the others need comes before them."""
    limits = {
        "stack": ("The stack", 60.0), "models": ("Models", 60.0), "teacher": ("A frozen teacher", 120.0),
        "student": ("The student", 150.0), "step": ("A step of two processes", 170.0), "teacher-fp8": ("FP8", 100.0),
    }  # fmt: skip
    return [part(name, table, limit, work, device) for name, (table, limit) in limits.items()]


def second_parts(work: Path, device: str) -> list[Part]:
    """Those of the second call: three worker groups on one GPU in the whole loop, or what of it loads without one."""
    loop = "tests/gpu/one_gpu.py", str(work / "models" / "student"), str(work / "one_gpu")
    if device == "cuda":
        return [Part("one-gpu", "The whole loop", loop, 215.0, ("vllm", "ray"))]
    return [part("engine", "Ray and vLLM", 60.0, work, device)]


def prepare(carried: Path) -> None:
    """What `tools/cluster_quarter.sh --prepare` packed fits a call."""
    check_sizes([carried / "first", carried / "second"], tree_bytes())


if __name__ == "__main__":
    sys.exit(quarter.main(__doc__, first_parts, second_parts, prepare))
