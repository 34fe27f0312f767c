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


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_an_idle_machine_keeps_the_default(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "core_share", lambda: share)
    environment: dict[str, str] = {}
    cores.choose_wait_policy(["train"], environment)
    assert environment == {}


@pytest.mark.parametrize("chosen", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "9"}, {"OMP_NUM_THREADS": "1"}])
def test_what_the_user_chose_stays(chosen: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "core_share", lambda: 0.1)
    environment = dict(chosen)
    cores.choose_wait_policy(["train"], environment)
    assert environment == chosen


def test_only_commands_that_compute_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "core_share", lambda: 0.1)
    environment: dict[str, str] = {}
    for words in ([], ["--help"], ["train", "--help"], ["plan", "run.yaml"]):
        cores.choose_wait_policy(words, environment)
    assert environment == {}
    assert set(cores.COMPUTING) <= {name for name in main.app if not name.startswith("-")}
