"""Native reduction of logits on x86-64 CPUs: `native_rows.c`, built on first use with the machine's C compiler.

Legend: N tokens, V vocabulary columns of this shard, W statistics per token.

The package stays a pure wheel: where there is no compiler, or no AVX2, the reduction in plain torch takes over.
The library is kept in the cache folder (`$NEMO_UECR_CACHE`, else `$XDG_CACHE_HOME/nemo_uecr`, else
`~/.cache/nemo_uecr`) under a name made of its source, the compiler and the processor. `NEMO_UECR_NATIVE=0`
turns it off. torch.utils.cpp_extension is no help here: it needs ninja and setuptools on the user's machine.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.scoring.records import StatisticsLayout

logger = logging.getLogger(__name__)

FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC")
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MAX_SUMS = 8
SMALLEST_TEMPERATURE = 1e-3
LARGEST_TEMPERATURE = 50.0
"""Up to here the kernel's floor of -1e4, its stand-in for -inf, is exp(-200) or less: nothing in float32."""
LOGITS_A_THREAD = 1 << 20
"""A further thread is worth starting for this many logits, about 0.2 ms of work."""


def reduce_natively(logits_NV: Tensor, layout: StatisticsLayout, stats_WN: Tensor) -> bool:
    """Write the max, the exponential sums and the weighted sum of each row into `stats_WN`, not the target's logit.

    Both are contiguous in their last dimension. Rows are shared out to as many threads as torch may use; a row's
    result does not depend on their number. False, and nothing is written, where the kernel is not built, or is not for
    these logits and temperatures.
    """
    sums = layout.sum_temperatures
    known = 1 <= len(sums) <= MAX_SUMS and all(SMALLEST_TEMPERATURE <= each <= LARGEST_TEMPERATURE for each in sums)
    reduce_rows = kernel() if known and logits_NV.device.type == "cpu" else None
    if reduce_rows is None:
        return False
    temperatures, dtype = (ctypes.c_double * len(sums))(*sums), DTYPE_CODES[logits_NV.dtype]

    def reduce(start: int, stop: int) -> None:  # ctypes lets go of the interpreter's lock meanwhile
        reduce_rows(
            logits_NV[start:].data_ptr(), dtype, stop - start, logits_NV.shape[1], logits_NV.stride(0),
            temperatures, len(temperatures), layout.entropy, stats_WN[:, start:].data_ptr(), stats_WN.stride(0),
        )  # fmt: skip

    tokens = logits_NV.shape[0]
    workers = min(torch.get_num_threads(), tokens, logits_NV.numel() // LOGITS_A_THREAD)
    if workers <= 1:
        reduce(0, tokens)
        return True
    bounds = [tokens * worker // workers for worker in range(workers + 1)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(reduce, bounds[:-1], bounds[1:]))
    return True


@cache
def kernel() -> Any | None:
    """The compiled function, built if needed; None where it is turned off or cannot be built."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if os.environ.get("NEMO_UECR_NATIVE") == "0":
        return None
    if compiler is None or platform.machine() not in ("x86_64", "AMD64"):
        logger.info("no native scoring: needs an x86-64 processor and a C compiler")
        return None
    try:
        reduce_rows = ctypes.CDLL(str(_built(compiler))).uecr_reduce_rows
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:  # RuntimeError: no home folder
        logger.info("no native scoring: %s", error)
        return None
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    doubles = ctypes.POINTER(ctypes.c_double)
    reduce_rows.argtypes = [pointer, number, size, size, size, doubles, number, number, pointer, size]
    reduce_rows.restype = None
    return reduce_rows


def _built(compiler: str) -> Path:
    """Path of the shared library, compiled unless the cache has it; it appears whole or not at all."""
    source = Path(__file__).with_name("native_rows.c")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    build_inputs = b"|".join((source.read_bytes(), version, _processor().encode(), repr(FLAGS).encode()))
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get("NEMO_UECR_CACHE") or f"{home}/nemo_uecr").expanduser() / "native"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"rows-{hashlib.sha256(build_inputs).hexdigest()[:20]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            fresh = Path(aside) / library.name
            subprocess.run([compiler, *FLAGS, "-o", str(fresh), str(source), "-lm"], capture_output=True, check=True)
            os.replace(fresh, library)
    return library


def _processor() -> str:
    """What decides the instructions of `-march=native`: machines of several kinds may share a cache folder."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else [platform.processor()]
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags"))} or set(lines)))
