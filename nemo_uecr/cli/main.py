"""The command `nemo-uecr`: its commands, and how errors are reported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError, Group, UnknownOptionError

from nemo_uecr import __version__
from nemo_uecr.cli import audit, data, evaluate, look, runs, score, slurm, train
from nemo_uecr.cli.common import family
from nemo_uecr.ending import refused, reported

#: Headings of the help and their commands: functions, whose docstrings are the help, or families of commands.
COMMANDS: dict[str, tuple[Callable[..., int | None] | App, ...]] = {
    "Train": (train.train, train.demo, train.smoke),
    "Inspect": (look.plan, look.doctor, look.config, runs.report, runs.replay),
    "Evaluate": (evaluate.app, score.score, audit.app, score.teacher),
    "Data": (data.app,),
    "Export": (runs.convert, runs.export, runs.pack),
    "Slurm": (slurm.app,),
}


def _app() -> App:
    top = family("nemo-uecr", "UECR-GRPO: on-policy distillation unified with GRPO.")
    top.version = __version__
    for place, (heading, commands) in enumerate(COMMANDS.items()):
        group = Group(heading, sort_key=place)
        for order, command in enumerate(commands):
            if isinstance(command, App):
                command.group, command.sort_key = group, order
                top.command(command)
            else:
                top.command(command, group=group, sort_key=order)
    return top


app = _app()


def entry_point(arguments: Sequence[str] | None = None, commands: App | None = None) -> int:
    """Run the words after the command, by default those of the process; returns the exit code.

    That is the command's own; 2 after a user's error, 75 after a run that saved and stopped on request, 130 after
    Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    called = app if commands is None else commands
    called.help_format = "markdown" if len(words) > 1 else "plaintext"  # Markdown takes 0.1 s to import
    try:
        code = reported(lambda: called(words, exit_on_error=False, print_error=False, result_action="return_value"))
    except CycloptsError as error:
        unknown = isinstance(error, UnknownOptionError) and "overrides" in getattr(error.target, "__annotations__", ())
        dashed = unknown and "Did you mean" not in str(error)
        hint = " A configuration's keys have no dashes: train.steps=3." if dashed else ""
        return refused(f"{error}{hint} See: {' '.join([*called.name, *(error.command_chain or ())])} --help")
    return code
