"""Which torch set-up keeps."""

from __future__ import annotations

import importlib.metadata
import runpy
from pathlib import Path

import pytest

SETUP = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "setup.py"))


@pytest.mark.parametrize(("version", "kept"), [("2.12.1", "2.12.1"), ("2.5.0", None)])
def test_a_torch_of_the_machine_is_kept_where_it_fits(
    version: str, kept: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / f"torch-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.metadata.version("torch") == version
    assert SETUP["machines_torch"]() == kept
    assert (f"torch=={version}" in SETUP["constraints"](kept).splitlines()) == (kept is not None)
