"""The made runs: whole or absent, under the name that they were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.audit import synthetic_run
from nemo_uecr.audit.synthetic_run import RATES, RunSize, make_runs
from nemo_uecr.config.load import load_config

SIZE = RunSize(steps=2, prompts=2, responses=8, tokens=8, limit=16, save_every=1)


def test_one_of_two_runs_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while the second is made: nothing is left that a second call would refuse."""
    whole = synthetic_run._record
    calls: list[int] = []

    def stopped(step: int, *rest: object) -> object:
        calls.append(step)
        if len(calls) > SIZE.steps:
            raise KeyboardInterrupt
        return whole(step, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(synthetic_run, "_record", stopped)
        with pytest.raises(KeyboardInterrupt):
            make_runs(tmp_path / "two", SIZE, seed=0)
    assert list(tmp_path.iterdir()) == []
    make_runs(tmp_path / "two", SIZE, seed=0)
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == sorted(RATES)
    for method in RATES:
        config = load_config(tmp_path / "two" / method / "config.yaml", ()).config
        assert config.run.folder == str(tmp_path / "two" / method)
        assert Path(config.data.train).is_file()
