"""Text, numbers and data on their way into HTML."""

from __future__ import annotations

import json
import math

import pytest

from nemo_uecr.report.markup import DASH, data_block, duration, equation, number, points, signed_points

HOSTILE = "</script><img src=x onerror=alert(1)>&\u2028'\""


def test_data_block_cannot_be_closed_from_inside_and_reads_back() -> None:
    block = data_block("name", {"text": HOSTILE})
    inner = block.removeprefix('<script type="application/json" id="name">').removesuffix("</script>")
    assert not set("<>&\u2028\u2029") & set(inner)
    assert json.loads(inner) == {"text": HOSTILE}
    assert '{"a":[null,null,1.5]}' in data_block("n", {"a": (math.nan, -math.inf, 1.5)})


def test_numbers() -> None:
    assert [number(value) for value in (0.0, 0.123456, 1e-6, None)] == ["0", "0.1235", "1e\u22126", DASH]
    assert (points(0.4114), signed_points(0.1), signed_points(-0.0312)) == ("41.1", "+10.0", "\u22123.1")
    assert (signed_points(-0.0), signed_points(-0.0004)) == ("+0.0", "\u22120.0")
    assert [duration(seconds) for seconds in (4.25, 200.0, 7500.0)] == ["4.2 s", "3 min 20 s", "2 h 05 min"]


@pytest.mark.parametrize(
    ("plain", "printed"),
    [
        ("A = A^U + rho A^task|U q", "A = A<sup>U</sup> + &rho; A<sup>task|U</sup> q"),
        ("clip(delta, -5, 5)", "clip(&delta;, \u22125, 5)"),
        ("x <b>", "x &lt;b&gt;"),
        ("opd_coef = 1, 1 - clip_low", "opd_coef = 1, 1 \u2212 clip_low"),
    ],
)
def test_equation(plain: str, printed: str) -> None:
    assert equation(plain) == printed
