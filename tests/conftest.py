"""Shared test set-up: the repository root on the import path, and bounded, repeatable hypothesis profiles."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
