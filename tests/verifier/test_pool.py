"""Comparison in processes that can be killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Pipe

import pytest

pytest.importorskip("math_verify")

from nemo_uecr.errors import UecrError
from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import ComparisonPool, check_response, check_responses


@pytest.fixture(scope="module")
def pool() -> Iterator[ComparisonPool]:
    with closing(ComparisonPool(workers=2, time_limit=2.0)) as pool:
        yield pool


#: Its value is plain, so that no cheap refusal sees it, and sympy writes it out: one power of big integers in C, in
#: which no signal handler and no thread gets a turn.
HANGS = (r"\frac{9^{9^{9}}}{9^{387420488}}", r"\sqrt{81}")


@pytest.fixture
def one() -> Iterator[ComparisonPool]:
    """A pool of one process, which runs."""
    with closing(ComparisonPool(workers=1, time_limit=60.0)) as pool:
        assert pool.judge(r"\frac{2}{4}", "0.5") is Verdict.CORRECT
        yield pool


def child(pool: ComparisonPool) -> subprocess.Popen[bytes]:
    running = pool._processes.first._process
    assert running is not None
    return running


def test_a_comparison_that_hangs_is_stopped_and_the_next_one_works() -> None:
    with closing(ComparisonPool(workers=1, time_limit=1.0)) as pool:
        pool.judge(r"\frac{2}{4}", "0.5")  # the start takes longer than the limit and does not count
        began = time.monotonic()
        assert pool.judge(*HANGS) is Verdict.TIMEOUT
        assert time.monotonic() - began < 10
        assert pool.judge(r"\frac{2}{4}", "0.5") is Verdict.CORRECT


def test_a_busy_machine_spoils_no_comparison() -> None:
    """What counts is the time that the process has the processor, and not how long it waits for it."""
    with closing(ComparisonPool(workers=1, time_limit=1.0)) as pool:
        pool.judge(r"\frac{2}{4}", "0.5")
        child(pool).send_signal(signal.SIGSTOP)
        threading.Timer(2.0, child(pool).send_signal, [signal.SIGCONT]).start()
        assert pool.judge(r"\frac{1}{2}", "0.5") is Verdict.CORRECT


def test_a_process_that_dies_is_replaced(one: ComparisonPool) -> None:
    """Between two comparisons nobody notices; a comparison that it was busy with is an error."""
    child(one).kill()
    child(one).wait()
    assert one.judge(r"\frac{1}{2}", "0.5") is Verdict.CORRECT
    threading.Timer(0.5, child(one).kill).start()
    assert one.judge(*HANGS) is Verdict.ERROR
    assert one.judge(r"\frac{1}{2}", "0.5") is Verdict.CORRECT


def test_a_request_to_end_that_reaches_every_process_spoils_no_comparison(one: ComparisonPool) -> None:
    """Slurm's preemption and `timeout` signal a run's children as well; the run finishes its step all the same."""
    before = child(one)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        before.send_signal(number)
        assert one.judge(r"\frac{1}{2}", "0.5") is Verdict.CORRECT
        assert child(one) is before


def test_a_batch_gets_what_one_at_a_time_gets(pool: ComparisonPool) -> None:
    answers = ["5", r"\frac{1}{2}", "(1,2)", r"\sqrt{8}", "7", "3", r"\text{east}", "9", r"\frac{7}{2}"]
    responses = [
        r"\boxed{5.0}", r"\boxed{0.5}", r"\boxed{(2,1)}", r"\boxed{2\sqrt{2}}", "7", r"\boxed{3.}", r"\boxed{east}",
        r"\boxed{}", "\\boxed{\x00\ud800\u202e7}",
    ]  # fmt: skip
    verdicts = [checked.verdict for checked in check_responses(responses, answers, pool)]
    assert verdicts == [check_response(*pair).verdict for pair in zip(responses, answers, strict=True)]
    assert [verdict.value for verdict in verdicts] == [
        "correct", "correct", "wrong", "correct", "no_answer", "correct", "correct", "no_answer", "wrong",
    ]  # fmt: skip


def test_a_comparison_that_hangs_ends_though_its_parent_is_gone() -> None:
    """The process itself has a limit, which needs no turn of the interpreter: nobody else is left to stop it."""
    ours, theirs = Pipe()
    program = f"from nemo_uecr.verifier import pool; pool.serve(pool.Connection({theirs.fileno()}), 1.0)"
    with subprocess.Popen([sys.executable, "-c", program], pass_fds=[theirs.fileno()]) as process:
        ours.send_bytes(json.dumps(HANGS).encode())
        assert process.wait(timeout=60) == -signal.SIGPROF


def test_a_process_that_never_starts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UecrError, match="did not start"):
        ComparisonPool(workers=1).judge(r"\frac{1}{2}", "0.5")
