"""``nemo-uecr report RUN...``: one self-contained HTML page about one run, or several side by side."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder; give several to compare them")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (default: report.html in the first run)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> int:
    """Write the page; 0 when it stands."""
    from nemo_uecr.report.page import write_report

    out = args.runs[0] / "report.html" if args.out is None else args.out
    written = write_report(args.runs, out)
    sys.stdout.write(f"report: {written}\n")
    if args.open:
        _open(written)
    return 0


def _open(page: Path) -> None:
    import webbrowser

    address = page.resolve().as_uri()
    if not (_has_display() and webbrowser.open(address)):
        sys.stdout.write(f"no browser to open it in; its address is {address}\n")


def _has_display() -> bool:
    """False on a Linux terminal without a screen, where a text browser would take over the terminal."""
    named = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in named)
