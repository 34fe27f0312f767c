"""Keep a CUDA library's machine code for some GPU architectures, in place; the rest becomes zeros, which compress away.

python tools/cluster/strip_fatbin.py LIBRARY ARCHITECTURE...      e.g. 90

Section .nv_fatbin is a row of fat binaries, each a header and entries: one kernel image for one architecture. Each fat
binary is written again at its own place with the wanted entries alone and zeros behind them, so that no offset in the
library changes. One without a wanted entry keeps its smallest, because a driver refuses an empty one; its kernels fail
when they are called. Symbols that only a debugger reads become zeros too.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Set
from pathlib import Path

#: A fat binary: magic, version, bytes of this header, bytes that follow. An entry: kind, version, bytes of its header,
#: bytes of its image, and its architecture at byte 28.
BINARY, ENTRY, ARCHITECTURE = struct.Struct("<IHHQ"), struct.Struct("<HHIQ"), struct.Struct("<28xI")
MAGIC, MACHINE_CODE = 0xBA55ED50, 2
SECTION = re.compile(r"\]\s+(\.\S+)\s+\S+\s+\S+\s+(\S+)\s+(\S+)")


def sections(library: Path) -> dict[str, tuple[int, int]]:
    """Place and size of each section in the file."""
    words = ["readelf", "--sections", "--wide", str(library)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return {name: (int(place, 16), int(size, 16)) for name, place, size in SECTION.findall(text)}


def entries(binary: bytes) -> Iterator[tuple[bytes, int | None]]:
    """What follows a fat binary's header: each entry with its architecture, or None if it is no machine code."""
    at = 0
    while at < len(binary):
        kind, _, header, image = ENTRY.unpack_from(binary, at)
        one = binary[at : at + header + image]
        yield one, ARCHITECTURE.unpack_from(one)[0] if kind == MACHINE_CODE else None
        at += header + image
    assert at == len(binary), f"entries end at {at} of {len(binary)} bytes"


def kept(binary: bytes, wanted: Set[int]) -> bytes:
    """The entries of these architectures, or else the smallest with machine code, or else everything."""
    found = list(entries(binary))
    chosen = [one for one, architecture in found if architecture in wanted]
    code = [one for one, architecture in found if architecture is not None]
    return b"".join(chosen) or min(code, key=len, default=binary)


def strip(data: bytearray, where: dict[str, tuple[int, int]], wanted: Set[int]) -> int:
    """Strip a library's bytes; the bytes of kernels that stay."""
    place, size = where[".nv_fatbin"]
    end, stays = place + size, 0
    while place < end:
        magic, version, header, length = BINARY.unpack_from(data, place)
        if magic != MAGIC:  # padding
            place += 8
            continue
        start = place + header
        new = kept(bytes(data[start : start + length]), wanted)
        BINARY.pack_into(data, place, magic, version, header, len(new))
        data[start : start + length] = new.ljust(length, b"\0")
        stays, place = stays + len(new), start + length
    for name in (".symtab", ".strtab"):
        begin, length = where.get(name, (0, 0))
        data[begin : begin + length] = bytes(length)
    return stays


def main(library: Path, wanted: Set[int]) -> None:
    """Strip a file."""
    where, data = sections(library), bytearray(library.read_bytes())
    stays = strip(data, where, wanted)
    library.write_bytes(data)
    sys.stdout.write(f"{library.name}: kept {stays >> 20} of {where['.nv_fatbin'][1] >> 20} MiB of kernels\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), set(map(int, sys.argv[2:])))
