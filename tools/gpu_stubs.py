"""Libraries of a GPU that say there is none, so that torch's CUDA build loads without them.

python tools/gpu_stubs.py TORCH_LIB OUT
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
NEEDED = re.compile(r"NEEDED.*\[(lib(?:cu|nv|nccl)[\w-]*\.so\.\d+)\]")
UNDEFINED = re.compile(r" UND ((?:cu|nccl|nvrtc|nvshmem|nvJit|__cuda|nvtx)\w*)(?:@([\w.-]+))?")


def main(libraries: Path, out: Path) -> None:
    """One library for each name that torch asks for, with every symbol that it would resolve there."""
    needed: set[str] = set()
    symbols: dict[str, set[str]] = {}  # by version; those without one are in every library without versions
    for path in libraries.glob("*.so*"):
        headers = ["readelf", "--wide", "--dynamic", "--dyn-syms", str(path)]
        text = subprocess.run(headers, capture_output=True, text=True, check=True).stdout
        needed |= set(NEEDED.findall(text))
        for symbol, version in UNDEFINED.findall(text):
            symbols.setdefault(version, set()).add(symbol)
    versions = {version if version in needed else "libnvshmem_host.so.3": version for version in symbols if version}
    out.mkdir(parents=True, exist_ok=True)
    for name in needed:
        version = versions.get(name, "")
        script = out / "version.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        source = "".join(f"int {symbol}(void) {{ return {NO_DEVICE}; }}\n" for symbol in sorted(symbols[version]))
        compiler = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", "-x", "c", "-", "-o", str(out / name)]
        more = [f"-Wl,-soname,{name}", f"-Wl,--version-script={script}"]
        subprocess.run([*compiler, *more], input=source, text=True, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
