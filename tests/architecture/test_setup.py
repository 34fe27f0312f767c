"""What set-up announces before it installs, and which torch it keeps."""

from __future__ import annotations

import importlib.metadata
import json
import runpy
from pathlib import Path

import pytest

SETUP = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools" / "setup.py"))


def report(folder: Path, **bytes_of: int) -> Path:
    entries = []
    for name, count in bytes_of.items():
        wheel = folder / f"{name}+cpu.whl"
        wheel.write_bytes(b"\0" * count)
        entries.append({"metadata": {"name": name.replace("_", "-")}, "download_info": {"url": wheel.as_uri()}})
    path = folder / "report.json"
    path.write_text(json.dumps({"install": entries}))
    return path


def test_the_size_of_the_cuda_build_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETUP["outlook"].__globals__, "GIGA", 1e3)
    line = SETUP["outlook"](report(tmp_path, torch=900, nvidia_cublas=2100, pydantic=500))
    assert "3 packages, 3.5 GB" in line
    assert "3.0 GB" in line
    assert "TORCH=cpu" in line
    assert "TORCH=cpu" not in SETUP["outlook"](report(tmp_path, torch=900))


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
    assert [line for line in SETUP["constraints"](kept).splitlines() if line == f"torch=={version}"] == [
        f"torch=={version}" for _ in [kept] if kept
    ]
