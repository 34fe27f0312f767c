"""Answer types, and the processes that judge rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_uecr.data.filters import answer_type
from tests.data.made import clean_rows, write_jsonl


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("42", "integer"), ("-1{,}000", "integer"), ("3.5", "decimal"), (r"\frac{3}{4}", "fraction"),
        ("3/4", "fraction"),
        ("Yes", "yes_no"), (r"\text{No}", "yes_no"), ("B", "choice"),
        (r"\text{(C)}", "choice"), (r"\infty", "infinite"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "matrix"), ("(0, 1]", "interval"), (r"\{1, 2\}", "set"),
        ("y = 2x + 1", "equation"), (r"\text{ellipse}", "text"), ("hyperbola", "text"), (r"2\sqrt{3}", "expression"),
        ("x^2 - 1", "expression"),
    ],
)  # fmt: skip
def test_answer_types(answer: str, name: str) -> None:
    assert answer_type(answer) == name


#: Starts two processes, says which they are, and waits to be killed.
PROGRAM = """
import multiprocessing, sys, time
from pathlib import Path
from nemo_uecr.data.filters import RowFilter, judged_rows
from nemo_uecr.data.problems import fields_of
from nemo_uecr.data.screening import Screen
if __name__ == "__main__":
    path = Path(sys.argv[1])
    rows = judged_rows([path], RowFilter(fields_of(path), None, frozenset(), Screen(())), workers=2)
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
