"""Native reduction of logits on x86-64 CPUs: `native_rows.c`, built on first use with the machine's C compiler.

Legend: N tokens, V vocabulary columns of this shard, W statistics a token.

The package stays a pure wheel: where there is no compiler, or no AVX2, the reduction in plain torch takes over.
The library is kept in the cache folder (`$NEMO_UECR_CACHE`, else `$XDG_CACHE_HOME/nemo_uecr`, else
`~/.cache/nemo_uecr`) under a name made of its source, the compiler and the processor. `NEMO_UECR_NATIVE=0`
turns it off.
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
import threading
from functools import cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from nemo_uecr.scoring.errors import ScoringInputError
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


def native_serves(logits_NV: Tensor, temperature: float) -> bool:
    """Whether the native reduction is built and takes these logits, whose rows lie in one piece, at a temperature."""
    return (
        logits_NV.device.type == "cpu"
        and SMALLEST_TEMPERATURE <= temperature <= LARGEST_TEMPERATURE
        and _library() is not None
    )


def native_is_built() -> bool:
    """Whether this process has the native reduction; builds it if needed."""
    return _library() is not None


def reduce_natively(logits_NV: Tensor, layout: StatisticsLayout, stats_WN: Tensor) -> None:
    """Write the max, the exponential sums and the weighted sum of each row into `stats_WN`.

    Rows are shared out to as many threads as torch may use; a row's result does not depend on their number.

    Args:
        logits_NV: `[N, V]` float logits with unit stride along V, padding columns sliced off, V >= 1.
        layout: which statistics to write, and where.
        stats_WN: `[W, N]` float32 with unit stride along N, written in place except for the target's row.

    Raises:
        ScoringInputError: a tensor of another kind, whose memory the compiled code would misread.
    """
    _check_memory("logits_NV", logits_NV, tuple(DTYPE_CODES), logits_NV.shape[0])
    _check_memory("stats_WN", stats_WN, (torch.float32,), layout.width)
    tokens = logits_NV.shape[0]
    if stats_WN.shape[1] != tokens:
        raise ScoringInputError(f"stats_WN has room for {stats_WN.shape[1]} tokens, expected {tokens}")
    workers = max(1, min(torch.get_num_threads(), tokens, logits_NV.numel() // LOGITS_A_THREAD))
    bounds = [tokens * w // workers for w in range(workers + 1)]
    threads = [
        threading.Thread(target=_reduce_rows, args=(logits_NV[a:b], layout, stats_WN[:, a:b]))
        for a, b in pairwise(bounds[1:])
    ]
    for thread in threads:
        thread.start()
    _reduce_rows(logits_NV[: bounds[1]], layout, stats_WN[:, : bounds[1]])
    for thread in threads:
        thread.join()


def _check_memory(name: str, value: Tensor, dtypes: tuple[torch.dtype, ...], rows: int) -> None:
    """Refuse what the compiled code, which sees an address and strides alone, would misread or write beyond."""
    expected = f"expected {rows} dense rows on the CPU of {' or '.join(map(str, dtypes))}"
    if value.dtype not in dtypes or value.layout is not torch.strided or value.device.type != "cpu":
        raise ScoringInputError(f"{name} is {value.dtype}, {value.layout}, on {value.device}; {expected}")
    if value.dim() != 2 or value.shape[0] != rows or (value.shape[1] > 1 and value.stride(1) != 1):
        raise ScoringInputError(f"{name} has shape {tuple(value.shape)} and strides {value.stride()}; {expected}")
    if value.is_neg() or (value.numel() > 0 and value.data_ptr() == 0):
        raise ScoringInputError(f"{name} is a view whose values are not in its memory; {expected}")


def _reduce_rows(logits_NV: Tensor, layout: StatisticsLayout, stats_WN: Tensor) -> None:
    temperatures = layout.sum_temperatures
    library = _library()
    if library is None:
        raise RuntimeError("the native reduction is not built; ask native_serves first")
    status = library.uecr_reduce_rows(
        ctypes.c_void_p(logits_NV.data_ptr()),
        ctypes.c_int(DTYPE_CODES[logits_NV.dtype]),
        ctypes.c_int64(logits_NV.shape[0]),
        ctypes.c_int64(logits_NV.shape[1]),
        ctypes.c_int64(logits_NV.stride(0)),
        (ctypes.c_double * len(temperatures))(*temperatures),
        ctypes.c_int(len(temperatures)),
        ctypes.c_int(layout.entropy),
        ctypes.c_void_p(stats_WN.data_ptr()),
        ctypes.c_int64(stats_WN.stride(0)),
    )
    if status != 0:
        raise RuntimeError(f"the native reduction refused {len(temperatures)} temperatures")


@cache
def _library() -> ctypes.CDLL | None:
    """The loaded library; None where it is turned off or cannot be built."""
    if os.environ.get("NEMO_UECR_NATIVE", "1") == "0":
        return None
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or platform.machine() not in ("x86_64", "AMD64"):
        logger.info("no native scoring: needs an x86-64 processor and a C compiler")
        return None
    try:
        library = ctypes.CDLL(str(_built(compiler, Path(__file__).with_name("native_rows.c"))))
        library.uecr_reduce_rows  # noqa: B018 - raises where the file is another library
        return library
    except (OSError, subprocess.SubprocessError, AttributeError, RuntimeError) as error:  # RuntimeError: no home folder
        logger.info("no native scoring: %s", error)
        return None


def _built(compiler: str, source: Path) -> Path:
    """Path of the shared library, compiled unless the cache has it; it appears whole or not at all."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    made_of = (source.read_bytes(), version, _processor().encode(), repr(FLAGS).encode())
    name = f"rows-{hashlib.sha256(b'|'.join(made_of)).hexdigest()[:20]}.so"
    folder = _cache_folder()
    library, digest = folder / name, folder / f"{name}.sha256"
    # A damaged library would end the process with a signal, so it is never loaded unseen.
    if library.exists() and digest.exists() and digest.read_bytes() == _sha256(library).encode():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        fresh = Path(aside) / name
        command = [compiler, *FLAGS, "-o", str(fresh), str(source), "-lm"]
        subprocess.run(command, capture_output=True, check=True, timeout=120)
        fresh_digest = Path(aside) / "sha256"
        fresh_digest.write_text(_sha256(fresh), encoding="ascii")
        os.replace(fresh, library)
        os.replace(fresh_digest, digest)
    return library


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _cache_folder() -> Path:
    given = os.environ.get("NEMO_UECR_CACHE")
    if given:
        folder = Path(given).expanduser() / "native"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nemo_uecr" / "native"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _processor() -> str:
    """What decides the instructions of `-march=native`."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    lines = cpuinfo.read_text().splitlines()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))
