"""The process that compares answers: one JSON pair a line in, one verdict a line out, until the input ends."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import BinaryIO

from nemo_uecr.verifier.symbolic import compare

#: A power tower must end in an error of its own, not in the machine's swap.
MEMORY_BYTES = 4 << 30
#: Seconds after which a comparison ends its process. The parent does so long before, unless it was killed itself.
ORPHAN_LIMIT = 120
READY = b"ready\n"
#: Requests to end, which may reach every process of a job: the run finishes its step, and a comparison cut off would be
#: an error in it. This process ends with its input, or is killed.
FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer every request; the first line says that the libraries are loaded."""
    compare(r"\frac{1}{2}", "0.5")
    answers.write(READY)
    answers.flush()
    for line in requests:
        given, expected = json.loads(line)
        signal.alarm(ORPHAN_LIMIT)  # its default action needs no interpreter, which a big integer may hold
        answers.write(compare(given, expected).value.encode() + b"\n")
        answers.flush()
        signal.alarm(0)


def main() -> None:
    """Serve on the standard streams; what a library prints goes nowhere."""
    for number in FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
