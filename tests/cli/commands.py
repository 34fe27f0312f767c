"""Every command as the parser knows it, for the tests that go through all of them."""

from __future__ import annotations

from collections.abc import Iterator

from cyclopts import App

from nemo_uecr.cli.main import app


def commands(parent: App = app, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """The words of every command that can run, the hidden ones too, and its app."""
    if words and parent.default_command is not None:
        yield words, parent
    for name in parent:
        if not name.startswith("-"):
            yield from commands(parent[name], (*words, name))


def options(command: App) -> set[str]:
    """The long options that a command takes."""
    return {
        name
        for argument in command.assemble_argument_collection(default_parameter=app.default_parameter)
        for name in argument.names
        if name.startswith("--")
    }
