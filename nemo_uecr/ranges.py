"""What a number may be: one type for the settings of methods, the keys of configurations and the command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """``low`` and ``high`` are allowed themselves unless they are open; NaN and infinity never are."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    unit: str = ""

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return math.isfinite(value) and above and below

    def __str__(self) -> str:
        low = "" if math.isinf(self.low) else f"{'>' if self.open_low else '>='} {self.low:g}"
        high = "" if math.isinf(self.high) else f"{'<' if self.open_high else '<='} {self.high:g}"
        return " ".join(part for part in ("a number", " and ".join(filter(None, (low, high))), self.unit) if part)

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """The limits as pydantic's own, so that it checks them, and writes them into a JSON schema."""
        low = {} if math.isinf(self.low) else {"gt" if self.open_low else "ge": self.low}
        high = {} if math.isinf(self.high) else {"lt" if self.open_high else "le": self.high}
        return handler(source) | low | high


def range_of(kind: Any) -> Range:
    """The range of one of the types below."""
    found: Range = kind.__metadata__[0]
    return found


Finite = Annotated[float, Range()]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, open_low=True)]
Nats = Annotated[float, Range(0, open_low=True, unit="nats")]
BelowOne = Annotated[float, Range(0, 1, open_high=True)]
UpToOne = Annotated[float, Range(0, 1, open_low=True)]
ZeroToOne = Annotated[float, Range(0, 1)]
#: More than nothing, less than all.
Share = Annotated[float, Range(0, 1, open_low=True, open_high=True)]
Count = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
