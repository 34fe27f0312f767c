"""Shared test set-up: the repository root on the import path, and bounded, repeatable hypothesis profiles."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    # Test modules share helpers as `tests.<layer>.<module>`, whichever way pytest was started.
    sys.path.insert(0, ROOT)

_QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large)
# No deadline: a busy machine is no failure.
settings.register_profile("ci", max_examples=40, derandomize=True, deadline=None, suppress_health_check=_QUIET)
settings.register_profile("explore", max_examples=1000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def low_bits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The libraries of few bits where they are installed, without what takes minutes or larger matrices on a CPU."""
    import torch

    if find_spec("torchao") and find_spec("bitsandbytes"):
        monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)  # its packing wants 32 rows
    torch.compiler.set_stance("force_eager")  # torchao compiles its step
    yield
    torch.compiler.set_stance("default")
