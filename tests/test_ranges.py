"""One range, read alike by a method's settings, a configuration's section and the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from cyclopts import App
from cyclopts.exceptions import ValidationError as NotAllowed
from pydantic import ValidationError, create_model

from nemo_uecr import ranges
from nemo_uecr.cli.common import within
from nemo_uecr.config.schema import Section
from nemo_uecr.core.methods.base import Method
from nemo_uecr.errors import ConfigError
from nemo_uecr.ranges import Range, range_of

#: Values, and those of the ranges that take each.
TAKEN = {
    "Positive": (1e-9, 1.0, 7.0), "NonNegative": (0.0, 7.0), "BelowOne": (0.0, 0.999), "UpToOne": (1e-9, 1.0),
    "ZeroToOne": (0.0, 1.0), "Share": (1e-9, 0.999), "Nats": (1e-9, 7.0), "Finite": (-7.0, 0.0, 7.0),
}  # fmt: skip
LEFT = {
    "Positive": (0.0, -1.0, math.inf), "NonNegative": (-1e-9, math.nan), "BelowOne": (-1e-9, 1.0),
    "UpToOne": (0.0, 1.1), "ZeroToOne": (-1e-9, 1.1), "Share": (0.0, 1.0), "Nats": (0.0, math.inf),
    "Finite": (math.nan, math.inf),
}  # fmt: skip


def users(name: str) -> tuple[Any, Any, Any]:
    """The three that take a number of a range."""
    kind = getattr(ranges, name)

    section = create_model("OneSection", __base__=Section, value=(kind, ...))

    @dataclass(frozen=True, kw_only=True)
    class OneMethod(Method):
        value: Any

        @classmethod
        def ranges(cls) -> dict[str, Range | None]:
            return {"value": range_of(kind)}

    app = App()

    def command(*, value: float) -> float:
        return value

    command.__annotations__["value"] = Annotated[float, within(range_of(kind))]
    app.default(command)

    def typed(*, value: float) -> Any:
        return app(f"--value={value}", exit_on_error=False, print_error=False, result_action="return_value")

    return section, OneMethod, typed


@pytest.mark.parametrize("name", TAKEN)
def test_all_three_take_and_refuse_the_same(name: str) -> None:
    for user, error in zip(users(name), (ValidationError, ConfigError, NotAllowed), strict=True):
        for value in TAKEN[name]:
            assert getattr(made := user(value=value), "value", made) == value
        for value in LEFT[name]:
            with pytest.raises(error):
                user(value=value)


def test_integers_keep_their_type_and_the_schema_has_the_limits() -> None:
    class Sized(Section):
        count: ranges.Count
        seed: ranges.Seed
        share: ranges.Share | None

    schema = Sized.model_json_schema()["properties"]
    assert schema["count"] == {"minimum": 1, "title": "Count", "type": "integer"}
    assert (schema["seed"]["minimum"], schema["seed"]["maximum"]) == (0, 2**32 - 1)
    assert schema["share"]["anyOf"][0] == {"exclusiveMaximum": 1, "exclusiveMinimum": 0, "type": "number"}
    with pytest.raises(ValidationError, match="valid integer"):
        Sized(count=1.0, seed=0, share=None)  # type: ignore[arg-type]
