"""Parameter types and functions that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from nemo_uecr import ranges
from nemo_uecr.errors import ConfigError
from nemo_uecr.ranges import Count, NonNegative, NonNegativeInt, Positive, Range, range_of

if TYPE_CHECKING:
    from cyclopts import Token

    from nemo_uecr.core.methods import Method, RunState


def family(name: str, summary: str | None = None) -> App:
    """An app for commands with the same first word: no `--no-` options, and lists as `--name A B C`."""
    parameter = Parameter(negative=(), consume_multiple=True, show_default=_shown_default)
    return App(name=name, help=summary, default_parameter=parameter, suppress_keyboard_interrupt=False)


def _shown_default(value: object) -> str | None:
    """The default in the help; nothing for a switch that is off or an empty list."""
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return None if shown in ("", "False", "None") else shown


def _numbers(_: object, tokens: Sequence[Token]) -> tuple[int, ...]:
    return tuple(map(int, tokens[0].value.split(",")))


def within(allowed: Range) -> Parameter:
    """A range as what the command line checks."""

    def check(_: object, value: float | None) -> None:
        if value is not None and value not in allowed:
            raise ValueError(f"Expected {allowed}.")

    return Parameter(validator=check)


ConfigFile = Annotated[str, Parameter(help="YAML configuration file.")]
Override = Annotated[str, Parameter(help="`key=value` changes one value, for example train.steps=10.")]
Json = Annotated[Path | None, Parameter(name="--json", help="Also write the result to this JSON file.")]
Words = Annotated[
    tuple[str, ...],
    Parameter(name="--set", help="Settings of the method as `key=value`: alpha=1 rho=.5 sample_std=true."),
]
Steps = Annotated[tuple[int, ...], Parameter(converter=_numbers, n_tokens=1, consume_multiple=False)]
AtLeastOne = Annotated[int, within(range_of(Count))]
Seed = Annotated[int, within(range_of(ranges.Seed))]
AboveZero = Annotated[float, within(range_of(Positive))]
ZeroOrMore = Annotated[float, within(range_of(NonNegative))]
ZeroOrMoreInt = Annotated[int, within(range_of(NonNegativeInt))]


def say(*lines: str) -> None:
    """Print lines, and flush them even into a pipe."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def method_settings(name: str, words: Sequence[str], run: Method | None = None) -> tuple[Method, RunState]:
    """A method with settings from ``key=value`` words, else from the run, else the defaults."""
    from nemo_uecr.config.load import load_method
    from nemo_uecr.core.methods import RunState

    given = dict(word.partition("=")[::2] for word in words)
    try:
        counts = {key: int(given.pop(key)) for key in ("step", "seed", "total_steps") if key in given}
        state = {key.removeprefix("state."): float(given.pop(key)) for key in [*given] if key.startswith("state.")}
        overrides = [f"method.{key}={text}" for key, text in given.items()]
        return load_method(name, overrides, run), RunState(**counts, state=state)
    except ValueError as error:  # ConfigError among them
        raise ConfigError(f"{error} (on this command: --set key=value, without 'method.')") from error


def refuse_input(out: Path, given: Path) -> None:
    """Refuse an output file that would overwrite the input."""
    if out.exists() and given.exists() and out.samefile(given):
        raise ConfigError(f"{out} is the input itself and would be lost; name another file")


def write_json(path: Path | None, content: object) -> None:
    """Write a JSON file, if a path is given."""
    from nemo_uecr.files import replace_file

    if path is not None:
        replace_file(path, (json.dumps(content, indent=1) + "\n").encode())
