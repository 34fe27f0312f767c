"""The processes that judge rows end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.made import clean_rows, write_jsonl

#: Starts two processes, says which they are, and waits to be killed.
PROGRAM = """
import multiprocessing, sys, time
from pathlib import Path
from nemo_uecr.data.chunks import Work, judged_rows
from nemo_uecr.data.filters import RowRules
from nemo_uecr.data.rows import fields_of
from nemo_uecr.data.screening import RULES
if __name__ == "__main__":
    path = Path(sys.argv[1])
    work = Work(fields_of(path), RowRules(None, frozenset()), (), RULES)
    rows = judged_rows([path], work, workers=2)
    next(rows)
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    time.sleep(600)
"""


def alive(process: int) -> bool:
    """Whether it runs; a zombie that nobody has buried does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the state of processes from /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    program, source = tmp_path / "program.py", write_jsonl(tmp_path / "s.jsonl", clean_rows(2000))
    program.write_text(PROGRAM, encoding="utf-8")
    parent = subprocess.Popen([sys.executable, program, source], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(word) for word in parent.stdout.readline().split()]
    assert len(children) == 2
    assert all(map(alive, children))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = [child for child in children if alive(child)]
    for child in left:
        os.kill(child, signal.SIGKILL)
    assert left == []
