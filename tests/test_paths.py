"""Names of models and data: those with a scheme are made by its provider, all others are themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr import paths


@pytest.mark.parametrize("name", ["Qwen/Qwen3-1.7B", "runs/demo:1/train.jsonl", "C:/models/student", "demo"])
def test_any_other_name_stands_for_itself(name: str) -> None:
    assert paths.resolve_path(name) == paths.locate_path(name) == name


def test_a_scheme_is_its_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is only located, nothing is made."""
    monkeypatch.setenv("NEMO_UECR_CACHE", str(tmp_path))
    assert Path(paths.locate_path("demo:student")).parent.parent == tmp_path
    assert list(tmp_path.iterdir()) == []
