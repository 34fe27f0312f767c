"""A prepared folder named in a configuration: its kept rows, as long as they are those of its manifest."""

from __future__ import annotations

from pathlib import Path

from nemo_uecr.data.manifest import HELD, KEPT, MANIFEST, describe_file, read_manifest
from nemo_uecr.errors import DataError
from nemo_uecr.files import recover_folder


def training_file(path: Path, key: str) -> Path:
    """The problem file that a configuration names: the file itself, or the kept rows of a prepared folder.

    Args:
        path: JSONL file, or folder made by `nemo-uecr data prepare`.
        key: the configuration's key, for the message.

    Raises:
        DataError: If there is neither, no row was kept, or the kept or held rows are not those of the manifest.
    """
    if path.is_file():
        return path
    recover_folder(path)
    if not path.is_dir():
        raise DataError(f"{key}: {path}: no such file; give a JSONL file or a folder of `nemo-uecr data prepare`")
    if not (path / MANIFEST).is_file():
        raise DataError(f"{key}: {path} has no {MANIFEST}; give a JSONL file or a folder of `nemo-uecr data prepare`")
    manifest = read_manifest(path)
    files = manifest["files"]
    for name in (KEPT, HELD):
        file = path / name
        if not file.is_file() or describe_file(file) != files.get(name):
            raise DataError(f"{key}: {file} is not the one of the manifest; run `nemo-uecr data verify {path}`")
    if manifest["counts"]["kept"] == 0:
        raise DataError(f"{key}: {path} has no kept row; prepare it with a wider --difficulty or other answer types")
    return path / KEPT
