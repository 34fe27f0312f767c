"""One self-contained HTML page about one run, or several side by side; or a check of what a run says of itself.

``nemo-uecr report --verify RUN`` compares the run folder's files, the models and data that the run read, the code and
the versions with the run's own record, names everything that changed, and ends with 1 when something did.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder; give several to compare them")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (default: report.html in the first run)")
    parser.add_argument("--verify", action="store_true", help="write no page; name what changed since the run")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> int:
    """Write the page, or verify; 0 when the page stands or nothing changed."""
    if args.verify:
        return max([_verify(run) for run in args.runs])
    from nemo_uecr.report.page import write_report

    out = args.runs[0] / "report.html" if args.out is None else args.out
    written = write_report(args.runs, out)
    sys.stdout.write(f"report: {written}\n")
    if args.open:
        _open(written)
    return 0


def _verify(folder: Path) -> int:
    from nemo_uecr.cli.configuration import objective_of
    from nemo_uecr.cli.extras import require_extra
    from nemo_uecr.demo.assets import locate

    require_extra("local")
    from nemo_uecr.local.verify import verify_run

    found = verify_run(folder, objective_of=objective_of, locate=locate)
    for text in found.changed:
        sys.stdout.write(f"changed: {text}\n")
    for text in found.unknown:
        sys.stdout.write(f"not checked: {text}\n")
    sys.stdout.write(
        f"{folder}: {found.same} as in the run, {len(found.changed)} changed, {len(found.unknown)} not checked\n"
    )
    return 1 if found.changed else 0


def _open(page: Path) -> None:
    import webbrowser

    address = page.resolve().as_uri()
    if not (_has_display() and webbrowser.open(address)):
        sys.stdout.write(f"no browser to open it in; its address is {address}\n")


def _has_display() -> bool:
    """False on a Linux terminal without a screen, where a text browser would take over the terminal."""
    named = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in named)
