"""A callable whose parameters are others, or in another order, is refused; read off the standard library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.upstream import UpstreamError, check_signatures


@pytest.mark.parametrize("names", ["text prefix predicate", "text prefix ...", "text ..."])
def test_what_is_there_passes(names: str) -> None:
    """``textwrap.indent(text, prefix, predicate=None)``."""
    check_signatures([("textwrap", "indent", names.split())], "0.7.0")


@pytest.mark.parametrize(
    "names", ["prefix text predicate", "prefix text ...", "text prefix", "text prefix predicate more"]
)
def test_another_order_or_number_is_refused(names: str) -> None:
    with pytest.raises(UpstreamError, match=r"textwrap\.indent takes \(text, prefix, predicate\); expected \("):
        check_signatures([("textwrap", "indent", names.split())], "0.7.0")


def test_a_missing_package_is_not_blamed_on_nemo_rl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nemo_rl" / "algorithms").mkdir(parents=True)
    (tmp_path / "nemo_rl" / "package_info.py").write_text('__version__ = "0.7.0"\n')
    (tmp_path / "nemo_rl" / "algorithms" / "grpo.py").write_text("import no_such_tracker.client\n")
    for name in ("nemo_rl", "nemo_rl.package_info", "nemo_rl.algorithms", "nemo_rl.algorithms.grpo"):
        monkeypatch.setitem(sys.modules, name, None)  # to be put back
        del sys.modules[name]
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UpstreamError, match="NeMo-RL imports no_such_tracker, which is not installed"):
        upstream.check()
