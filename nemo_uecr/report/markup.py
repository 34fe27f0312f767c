"""Numbers, equations and data blocks in HTML; the templates escape every other string."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from nemo_uecr.tables import rounded

if TYPE_CHECKING:
    from jinja2 import Environment

#: A missing value or the middle of an interval, and the sign of a negative number.
DASH, MINUS = "\u2013", "\u2212"


@cache
def templates() -> Environment:
    """The templates of the page and its charts."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("nemo_uecr.report", "assets")
    made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    made.filters |= {"equation": equation, "number": number, "points": points, "signed": signed_points}
    return made


def data_block(name: str, content: Any) -> Markup:
    """A JSON block for the page's script; no text in it can end the block or open a tag."""
    finite = json.loads(json.dumps(content), parse_constant=lambda _: None)  # NaN and infinities become null
    encoded = json.dumps(finite, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    # A tokenizer's broken byte may decode to a lone surrogate, which UTF-8 cannot encode.
    encoded = encoded.encode("utf-8", "replace").decode("utf-8")
    return Markup(f'<script type="application/json" id="{escape(name)}">{encoded}</script>')


def equation(plain: str) -> Markup:
    """A plain-text equation as HTML: ``A^task|U`` gets a superscript, ``tau_delta`` Greek letter and subscript."""
    escaped = str(escape(plain))
    for typed, printed in SIGNS.items():
        escaped = re.sub(typed, printed, escaped)
    escaped = re.sub(r"\^\{([^}]*)\}", r"<sup>\1</sup>", escaped)
    escaped = re.sub(r"\^([A-Za-z]+(?:\|[A-Za-z]+)?|\d+)", r"<sup>\1</sup>", escaped)
    base = rf"(?<![A-Za-z_])((?:{'|'.join(GREEK)})|[A-Za-z])"  # clip_low is a name without index
    escaped = re.sub(rf"{base}_(?:\{{([^}}]*)\}}|([A-Za-z]+|\d+))", r"\1<sub>\2\3</sub>", escaped)
    escaped = re.sub(rf"(?<![A-Za-z&])({'|'.join(GREEK)})(?![A-Za-z;])", r"&\1;", escaped)
    return Markup(escaped.replace("&eps;", "&epsilon;"))


#: Signs in escaped text, and their printed forms.
SIGNS = {
    r" \* ": " &middot; ",
    r"&lt;=": "&le;",
    r"&gt;=": "&ge;",
    r"\b1/2\b": "&frac12;",
    r"(?<![\w}])-(?=[\w\s])|(?<=\s)-(?=\s)": MINUS,
}
#: Names printed as Greek letters; HTML entities have the same names, except ``eps``.
GREEK = ("alpha", "beta", "delta", "eps", "kappa", "mu", "pi", "rho", "sigma", "tau")


def number(value: float | None, digits: int = 4) -> str:
    """``digits`` significant digits, without an exponent between 1e-3 and 1e6."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        mantissa, exponent = f"{value:.{max(0, min(digits, 3) - 1)}e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}".replace("-", MINUS)
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    shown = f"{value:.{decimals}f}"
    return (shown.rstrip("0").rstrip(".") if "." in shown else shown).replace("-", MINUS)


def points(share: float) -> str:
    """A share as percent with one decimal: 0.4114 is ``41.1``."""
    return f"{100 * share:.1f}".replace("-", MINUS)


def signed_points(difference: float, digits: int = 1) -> str:
    """A difference of shares in percentage points with its sign."""
    return rounded(100 * difference, digits, sign="+").replace("-", MINUS)


def duration(seconds: float) -> str:
    """``48 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 90:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
