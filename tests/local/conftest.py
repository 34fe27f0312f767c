"""One thread and the tiny models for every test of the training loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.local.tiny import every, run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps that saves everything; tests read it, or damage a copy."""
    return run(tmp_path_factory.mktemp("trained") / "run", *every())


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Bitwise comparisons are made at one thread count; children are forked without a thread pool."""
    torch.set_num_threads(1)
