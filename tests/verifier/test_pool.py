"""Comparison in processes that can be stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Pipe

import pytest

pytest.importorskip("math_verify")

from nemo_uecr.errors import UecrError
from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import (
    ComparisonPool,
    ComparisonProcess,
    check_response,
    check_responses,
)


@pytest.fixture(scope="module")
def pool() -> Iterator[ComparisonPool]:
    pool = ComparisonPool(workers=2, time_limit=2.0)
    yield pool
    pool.close()


#: Its value is plain, so that no cheap refusal sees it, and sympy writes it out: one power of big integers in C, in
#: which no signal handler and no thread gets a turn.
HANGS = (r"\frac{9^{9^{9}}}{9^{387420488}}", r"\sqrt{81}")


def test_a_comparison_that_hangs_is_stopped_and_the_next_one_works() -> None:
    process = ComparisonProcess(time_limit=1.0)
    process.compare("1", "2")  # the start takes longer than the limit and does not count
    began = time.monotonic()
    assert process.compare(*HANGS) is Verdict.TIMEOUT
    assert time.monotonic() - began < 10
    assert process.compare(r"\frac{2}{4}", "0.5") is Verdict.CORRECT
    process.close()


def test_a_process_that_dies_is_replaced() -> None:
    """Between two comparisons unseen; of a comparison, that one is an error."""
    process = ComparisonProcess(time_limit=60.0)
    process.compare("1", "2")
    kill(process)
    assert process.compare(r"\frac{1}{2}", "0.5") is Verdict.CORRECT
    threading.Timer(0.5, kill, [process]).start()
    assert process.compare(*HANGS) is Verdict.ERROR
    assert process.compare(r"\frac{1}{2}", "0.5") is Verdict.CORRECT
    process.close()


def test_a_request_to_end_that_reaches_every_process_spoils_no_comparison() -> None:
    """Slurm's preemption and `timeout` signal a run's children as well; the run finishes its step all the same."""
    process = ComparisonProcess(time_limit=60.0)
    process.compare("1", "2")
    assert process._process is not None
    before = process._process.pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(before, number)
        assert process.compare(r"\frac{1}{2}", "0.5") is Verdict.CORRECT
        assert process._process.pid == before
    process.close()


def kill(process: ComparisonProcess) -> None:
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGKILL)
    if threading.current_thread() is threading.main_thread():
        process._process.wait()


def test_a_batch_gets_what_one_at_a_time_gets(pool: ComparisonPool) -> None:
    answers = ["5", r"\frac{1}{2}", "(1,2)", r"\sqrt{8}", "7", "3", r"\text{east}", "9"]
    responses = [
        r"\boxed{5.0}", r"\boxed{0.5}", r"\boxed{(2,1)}", r"\boxed{2\sqrt{2}}", "7", r"\boxed{3.}", r"\boxed{east}",
        r"\boxed{}",
    ]  # fmt: skip
    verdicts = [checked.verdict for checked in check_responses(responses, answers, pool)]
    assert verdicts == [check_response(*pair).verdict for pair in zip(responses, answers, strict=True)]
    assert [verdict.value for verdict in verdicts] == [
        "correct", "correct", "wrong", "correct", "no_answer", "correct", "correct", "no_answer",
    ]  # fmt: skip


ADVERSARIAL = {
    "a megabyte of open braces": r"\boxed{" + "{" * 1_000_000,
    "a megabyte of boxes": r"\boxed{" * 150_000,
    "deep nesting": r"\boxed{" + r"\frac{1}{" * 200 + "2" + "}" * 200 + "}",
    "brackets": r"\boxed{" + "(" * 900 + "}",
    "tower": r"\boxed{9^{9^{9^{9}}}}",
    "factorial": r"\boxed{99999999999!}",
    "null bytes and surrogates": "\\boxed{\x00\ud800\u202e7}",
    "other digits": "\\boxed{\u0667}",
    "two boxes, the last wrong": r"\boxed{7} \boxed{8}",
    "two answers in a box": r"\boxed{7 \text{ or } 8}",
    "two answers with a comma": r"\boxed{7, 8}",
    "an equation of two numbers": r"\boxed{8=7}",
    "a set of answers": r"\boxed{\{7, 8\}}",
    "no box": "the answer is 7",
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_responses_end_soon_and_earn_nothing(name: str, pool: ComparisonPool) -> None:
    began = time.monotonic()
    assert check_responses([ADVERSARIAL[name]], ["7"], pool)[0].reward == 0.0
    assert time.monotonic() - began < 20


def test_a_comparison_that_hangs_ends_though_its_parent_is_gone() -> None:
    """The process itself has a limit, which needs no turn of the interpreter: nobody else is left to stop it."""
    ours, theirs = Pipe()
    program = (
        f"from nemo_uecr.verifier import pool; pool.ORPHAN_LIMIT = 1; pool.serve(pool.Connection({theirs.fileno()}))"
    )
    with subprocess.Popen([sys.executable, "-c", program], pass_fds=[theirs.fileno()]) as process:
        ours.send_bytes(json.dumps(HANGS).encode())
        assert process.wait(timeout=60) == -signal.SIGALRM


def test_a_process_that_never_starts_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UecrError, match="did not start"):
        ComparisonProcess(time_limit=60.0).compare(r"\frac{1}{2}", "0.5")
