"""A callable whose parameters are others, or in another order, is refused; read off the standard library."""

from __future__ import annotations

import pytest

from nemo_uecr.nemo_adapter.errors import UpstreamError
from nemo_uecr.nemo_adapter.signatures import check_table


@pytest.mark.parametrize("names", ["text prefix predicate", "text prefix ...", "text ..."])
def test_what_is_there_passes(names: str) -> None:
    """``textwrap.indent(text, prefix, predicate=None)``."""
    check_table(f"textwrap indent: {names}", "0.7.0")


@pytest.mark.parametrize(
    "names", ["prefix text predicate", "prefix text ...", "text prefix", "text prefix predicate more"]
)
def test_another_order_or_number_is_refused(names: str) -> None:
    with pytest.raises(UpstreamError, match=r"textwrap\.indent takes \(text, prefix, predicate\); expected \("):
        check_table(f"textwrap indent: {names}", "0.7.0")
