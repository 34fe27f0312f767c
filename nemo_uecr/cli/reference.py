"""The page of the commands, written from their argument parsers.

`python -m nemo_uecr.cli.reference > docs/cli.md` renews the page; a test holds it current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module

from nemo_uecr.cli.main import parser_of
from nemo_uecr.cli.table import COMMANDS, Command

__all__ = ["cli_page"]

_OPENING = """\
# Commands

Every command of `nemo-uecr` with its arguments and options, to look things up; `nemo-uecr COMMAND --help` prints the
same. The page is written from the parsers by `python -m nemo_uecr.cli.reference`; edit the command, not the page.

A configuration's keys are changed by `key=value` ([configuration.md](configuration.md)). Exit codes and error lines are
in [troubleshooting.md](troubleshooting.md).

| command | does |
|---|---|
"""


def cli_page() -> str:
    """The page as Markdown."""
    commands = sorted(COMMANDS, key=lambda command: command.words)
    rows = (f"| [`{command.name}`](#{_anchor(command)}) | {command.summary} |\n" for command in commands)
    return _OPENING + "".join(rows) + "".join(line + "\n" for each in commands for line in _section(each))


def _anchor(command: Command) -> str:
    return "-".join(("nemo-uecr", *command.words))


def _section(command: Command) -> Iterator[str]:
    parser = parser_of(command, import_module(command.module))
    yield from ("", f"## `nemo-uecr {command.name}`", "")
    yield from ("```text", (parser.description or "").strip(), "```")
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    if actions:
        yield from ("", "| argument | default | meaning |", "|---|---|---|")
    for action in actions:
        cells = (f"`{_form(action)}`", _default(action), _meaning(action))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _form(action: argparse.Action) -> str:
    """How the argument is written: `--out DIR`, `CONFIG`, `--open`."""
    if not action.option_strings:
        return _values(action)
    return " ".join((", ".join(action.option_strings), _values(action))).strip()


def _values(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    choices = None if action.choices is None else "{" + ",".join(str(choice) for choice in action.choices) + "}"
    name = action.metavar or choices or (action.dest if not action.option_strings else action.dest.upper())
    if isinstance(name, tuple):
        return " ".join(name)
    forms = {None: name, "?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}
    return forms[action.nargs] if not isinstance(action.nargs, int) else " ".join([name] * action.nargs)


def _default(action: argparse.Action) -> str:
    if action.required and action.nargs not in ("?", "*"):
        return "required"
    if action.default is None or action.default is argparse.SUPPRESS or action.nargs == 0 or action.default == []:
        return ""
    shown = " ".join(map(str, action.default)) if isinstance(action.default, (list, tuple)) else str(action.default)
    return f"`{shown!r}`" if "\n" in shown else f"`{shown}`"


def _meaning(action: argparse.Action) -> str:
    parameters = {**vars(action), "prog": "nemo-uecr"}
    return " ".join((action.help or "").split()) % parameters if action.help else ""


if __name__ == "__main__":
    sys.stdout.write(cli_page())
