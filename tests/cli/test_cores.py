"""How threads wait on a machine that other processes use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nemo_uecr.cli import cores, main

BUSY = "while True: pass"


def test_a_busy_machine_makes_threads_sleep_while_they_wait() -> None:
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        environment: dict[str, str] = {}
        cores.choose_wait_policy(["train"], environment)
        assert environment == {"OMP_WAIT_POLICY": "passive"}
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize(
    ("share", "words", "chosen"),
    [
        (1.0, ["train"], {}),
        (0.9, ["train"], {}),
        (0.1, ["train"], {"OMP_WAIT_POLICY": "active"}),
        (0.1, ["train"], {"GOMP_SPINCOUNT": "9"}),
        (0.1, ["train"], {"OMP_NUM_THREADS": "1"}),
        *((0.1, words, {}) for words in ([], ["--help"], ["train", "--help"], ["plan", "run.yaml"])),  # no computing
    ],
)
def test_an_idle_machine_a_users_choice_and_other_commands_stay(
    share: float, words: list[str], chosen: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "core_share", lambda: share)
    environment = dict(chosen)
    cores.choose_wait_policy(words, environment)
    assert environment == chosen


def test_commands_that_compute_exist() -> None:
    assert set(cores.COMPUTING) <= {name for name in main.app if not name.startswith("-")}
