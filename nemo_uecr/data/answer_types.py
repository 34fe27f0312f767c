"""Answer types by named rules; the first rule that fits names the type."""

from __future__ import annotations

import re

from nemo_uecr.errors import DataError

_NUMBER = r"[+-]?(?:\d+|\d{1,3}(?:(?:,|\{,\})\d{3})+)"
_FRACTION = r"[+-]?\\[dt]?frac\s*(?:\{\s*[+-]?\d+\s*\}|\d)\s*(?:\{\s*\d+\s*\}|\d)|[+-]?\d+\s*/\s*\d+"

#: Name and pattern, tried in this order on the answer without dollar signs and outer blanks, case ignored.
RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for name, pattern in (
        ("integer", _NUMBER),
        ("decimal", r"[+-]?\d*\.\d+"),
        ("fraction", _FRACTION),
        ("yes_no", r"(?:\\text\s*\{\s*)?(?:yes|no|true|false)(?:\s*\})?\.?"),
        ("choice", r"(?:\\text\s*\{\s*)?\(?[A-E]\)?(?:\s*\})?"),
        ("infinite", r"[+-]?\\infty|(?:\\text\s*\{\s*)?(?:does not exist|diverges|undefined|infinity)(?:\s*\})?"),
        ("matrix", r".*\\begin\s*\{[a-z]*matrix\}.*"),
        ("interval", r"[\[(\]].*,.*[\])\[]\s*(?:\\cup.*)?"),
        ("set", r"\\\{.*\\\}|\\emptyset|\\varnothing"),
        ("equation", r"[^=]*[^<>!=]=[^=]*"),
        ("text", r"(?:\\(?:text|mathrm|mbox)\s*\{[^}]*\}|[A-Za-z][A-Za-z' -]{3,})\.?"),
    )
)
#: What no rule fits.
OTHER = "expression"
NAMES: tuple[str, ...] = (*(name for name, _ in RULES), OTHER)


def answer_type(answer: str) -> str:
    """The name of the first rule that the whole answer fits, `expression` when none does."""
    bare = answer.replace("$", "").strip()
    return next((name for name, pattern in RULES if pattern.fullmatch(bare)), OTHER)


def checked_types(names: tuple[str, ...], option: str) -> frozenset[str]:
    """The names as a set.

    Raises:
        DataError: naming the first that is no rule.
    """
    for name in names:
        if name not in NAMES:
            raise DataError(f"{option}: got {name!r}; expected some of {', '.join(NAMES)}")
    return frozenset(names)
