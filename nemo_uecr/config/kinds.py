"""The value kinds that the schema's fields share: a type with its limits, named once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

__all__ = [
    "COLDEST",
    "HOTTEST",
    "Beta",
    "ClipHigh",
    "Count",
    "Device",
    "Dtype",
    "LearningRate",
    "NonNegative",
    "NonNegativeInt",
    "Pair",
    "Positive",
    "Progress",
    "PromptTemplate",
    "SamplingTemperature",
    "Seed",
    "Share",
    "Std",
    "Switch",
    "Temperature",
    "Text",
    "Threads",
    "TopP",
    "Tracking",
]

#: Between these temperatures logits / T stay within float32.
COLDEST, HOTTEST = 1e-3, 1e3

Count = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Positive = Annotated[float, Field(gt=0)]
LearningRate = Annotated[float, Field(gt=0, le=1e30)]  # float32 arithmetic ends at 3e38
Threads = Annotated[int, Field(ge=1, le=4096)]  # OpenMP ends the process at numbers that no machine has
SamplingTemperature = Annotated[float, Field(ge=COLDEST, le=HOTTEST)]
Temperature = Annotated[float, Field(ge=0, le=HOTTEST)]
ClipHigh = Annotated[float, Field(gt=0, le=1e6)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
TopP = Annotated[float, Field(gt=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["float32", "bfloat16"]
Std = Literal["population", "sample"]


def _word_of_switch(value: object) -> object:
    """YAML 1.1 reads a bare on/off as a boolean; these fields mean the word."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_word_of_switch)]
Tracking = Annotated[Literal["off", "offline", "online"], BeforeValidator(_word_of_switch)]
Progress = Annotated[Literal["auto", "bar", "lines", "off"], BeforeValidator(_word_of_switch)]


def _tuple_of_list(value: object) -> object:
    """YAML has lists only; a frozen model keeps tuples."""
    return tuple(value) if isinstance(value, list) else value


Pair = Annotated[tuple[Beta, Beta], BeforeValidator(_tuple_of_list)]


def _with_question(template: str) -> str:
    if "{question}" not in template:
        raise ValueError(f"data.prompt_template: got {template!r}, expected a text that contains {{question}}")
    return template


PromptTemplate = Annotated[str, AfterValidator(_with_question)]
