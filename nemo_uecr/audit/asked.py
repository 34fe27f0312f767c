"""Which responses a folder of scores was asked for, so that a call with fewer cannot make a part of them look whole."""

from __future__ import annotations

import json
from collections.abc import Set
from pathlib import Path

from nemo_uecr.audit.part_checks import read_plan
from nemo_uecr.audit.schema import PLAN, RESPONSES
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import read_object, replace_file

FORMAT = "nemo_uecr.asked/1"
#: Names of all responses that the folder was ever asked for.
ASKED = "asked.json"


def check_asked(folder: Path, own: Set[str], done: Set[str]) -> set[str]:
    """Everything that the folder is asked for, this call included.

    A folder without a scored response was asked for nothing yet: what it lacks cannot be taken for all of it.

    Args:
        folder: the folder of scores.
        own: names of this call's responses.
        done: names of those that are scored.

    Raises:
        RunFolderError: If an interrupted call asked for responses that are neither scored nor this call's.
    """
    if not done:
        return set(own)
    before = _read(folder) | done
    lost = before - done - own
    wanted = max(len(before), int(read_plan(folder).get(RESPONSES, 0)))
    if lost or wanted > len(before | own):
        first = f", {min(lost)!r} for one" if lost else ""
        raise RunFolderError(
            f"{folder} holds {len(done)} of the {wanted} responses that an interrupted `nemo-uecr score` was to score, "
            f"and this call has {len(own)} without the rest{first}; finish with the command that began it, or a longer "
            "one, or choose another --out"
        )
    return before | own


def record_asked(folder: Path, asked: Set[str]) -> None:
    """Write the names, before the plan says how many they are."""
    replace_file(folder / ASKED, (json.dumps({"format": FORMAT, "ids": sorted(asked)}) + "\n").encode())


def _read(folder: Path) -> set[str]:
    path = folder / ASKED
    if not path.is_file():
        return set()  # scores that were written at once
    ids = read_object(path).get("ids")
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise DataError(f"{path} has no list of names beside {PLAN}; expected the file as `score` writes it")
    return set(ids)
