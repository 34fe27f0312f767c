"""Data sets by their public name: a local path is used as it is, anything else is fetched from the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.errors import DataError, DependencyError

#: Seconds in which the hub must answer one question before its models are looked for on this machine alone.
HUB_SECONDS = 10.0


@dataclass(frozen=True)
class Located:
    """Where a data set lies on disk.

    Attributes:
        name: what the user called it.
        path: file or folder.
        revision: commit of the hub's repository; None for local files, whose hashes say what they are.
    """

    name: str
    path: Path
    revision: str | None


def locate(name: str, *, revision: str | None) -> Located:
    """A local path, or the hub's data set of that name, downloaded.

    Args:
        name: path, or ``owner/name``.
        revision: branch, tag or commit on the hub; None is its main branch.

    Raises:
        DataError: If it is neither, or empty, or the hub does not answer.
    """
    if not name.strip():  # an empty path is the current folder
        raise DataError(f"the name of a data set is {name!r}; expected a file, a folder or a name on the hub")
    path = Path(name).expanduser()
    if path.exists() or not is_repository(name):
        return Located(path.name if path.exists() else name, path, None)
    return _download(name, revision)


def is_repository(name: str) -> bool:
    """Whether a name that is no path here is taken for one of the hub's."""
    return has_hub_form(name) and Path(name).suffix not in (".jsonl", ".parquet")


def has_hub_form(name: str) -> bool:
    """Whether a name could be one of the hub's, ``owner/name``, and does not begin as a path does."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def only_here(name: str) -> bool:
    """Whether a model's files can come from this machine alone: it is a folder, or the hub does not answer.

    Told so, transformers looks once, where without a network it would ask for every file of the model six times and
    wait in between, a minute in all. One question answers it, without such waits.

    Args:
        name: folder, or name on the hub.
    """
    if Path(name).exists():
        return True
    import huggingface_hub
    from huggingface_hub import errors

    try:
        huggingface_hub.HfApi().model_info(name, timeout=HUB_SECONDS)
    except (errors.HfHubHTTPError, ValueError):
        return False  # it answered, or the name is none: transformers has the words for it
    except (errors.HTTPError, OSError):  # the HTTP client's own error, under whichever name this version imports it
        return True
    return False


def _download(name: str, revision: str | None) -> Located:
    try:
        import huggingface_hub
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as missing:
        raise DependencyError(f"fetching {name} needs huggingface_hub; pip install 'nemo-uecr[data]'") from missing
    try:
        # Returns the cached snapshot when the hub is offline and the revision is already on disk.
        folder = huggingface_hub.snapshot_download(
            name, repo_type="dataset", revision=revision, allow_patterns=["*.parquet", "*.jsonl"]
        )
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise DataError(
            f"{name}: no such file here, and the hub did not give it ({' '.join(str(error).split())[:160]}); "
            "name a local .jsonl or .parquet file or check the network"
        ) from error
    return Located(name, Path(folder), Path(folder).name)
