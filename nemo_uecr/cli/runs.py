"""Commands on run folders: `report`, `pack` and `unpack`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from nemo_uecr.cli.common import AtLeastOne, objective_of
from nemo_uecr.errors import RunFolderError, require_extra

__all__ = ["pack", "report", "unpack"]


def report(
    run: Path,
    /,
    *others: Path,
    out: Path | None = None,
    verify: bool = False,
    open_: Annotated[bool, Parameter(name="--open")] = False,
) -> int:
    """One self-contained HTML page about one run, or several side by side; or a check of a run against its record.

    `--verify` compares the run folder's files, the models and data that the run read, the code and the versions with
    the run's own record, names everything that changed, and ends with exit code 1 when something did.

    Args:
        run: Run folder.
        others: Further runs, side by side.
        out: The page (default: report.html in the first run).
        verify: Write no page; name what changed since the run.
        open_: Open the page in the browser.
    """
    if verify:
        return max([_verify(folder) for folder in (run, *others)])
    from nemo_uecr.report.page import write_report

    written = write_report([run, *others], run / "report.html" if out is None else out)
    sys.stdout.write(f"report: {written}\n")
    if open_:
        _open(written)
    return 0


def _verify(folder: Path) -> int:
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

    # On a Linux terminal without a screen a text browser would take over the terminal.
    screen = not sys.platform.startswith("linux") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    address = page.resolve().as_uri()
    if not (screen and webbrowser.open(address)):
        sys.stdout.write(f"no browser to open it in; its address is {address}\n")


def pack(run: Path, out: Path, /, *, without_checkpoints: bool = False) -> None:
    """Pack a run folder into one archive (.tar.gz), to be unpacked and replayed elsewhere.

    Every file goes in with its sha256. Equal folders give equal archives.

        nemo-uecr pack runs/demo demo.tar.gz --without-checkpoints

    Args:
        run: Run folder.
        out: Archive to write.
        without_checkpoints: Leave checkpoints/ out.
    """
    from nemo_uecr.data.archive import pack as write_archive
    from nemo_uecr.files import in_use

    if not (run / "config.yaml").is_file():
        raise RunFolderError(f"{run} has no config.yaml; expected the run folder that `nemo-uecr train` wrote")
    if in_use(run):
        raise RunFolderError(f"{run} is in use by a run; wait until it has ended, then pack again")
    files = write_archive(run, out, checkpoints=not without_checkpoints)
    sys.stdout.write(f"{files} files, {out.stat().st_size / 1e6:.1f} MB: {out}\n")


def unpack(archive: Path, folder: Path, /, *, max_gib: AtLeastOne = 64) -> None:
    """Unpack an archive that `nemo-uecr pack` wrote into a new folder.

    Every file is compared with its sha256. An archive with links, with a name that leads outside the folder, or with
    more than `--max-gib` of files, is refused as a whole.

    Args:
        archive: File that `pack` wrote.
        folder: Folder to make.
        max_gib: Most that the files may take, GiB.
    """
    from nemo_uecr.data.archive import unpack as read_archive

    sys.stdout.write(f"{read_archive(archive, folder, max_gib=max_gib)} files: {folder}\n")
