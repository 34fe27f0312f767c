"""The real benchmark files, where they are beside the checkout or named by an environment variable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("NEMO_UECR_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data"))
needs_real_files = pytest.mark.skipif(
    not (FOLDER / "aime24.jsonl").is_file(), reason="the benchmark files are not here; name their folder NEMO_UECR_DATA"
)
