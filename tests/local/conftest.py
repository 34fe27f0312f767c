"""One thread and the tiny models for every test of the training loop."""

from __future__ import annotations

import pytest
import torch

from tests.local.tiny import Assets, assets


@pytest.fixture(scope="session")
def tiny() -> Assets:
    """Folders of the tiny student and teacher, the problems and the configuration."""
    return assets()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Bitwise comparisons are made at one thread count; children are forked without a thread pool."""
    torch.set_num_threads(1)
