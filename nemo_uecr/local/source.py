"""Which code a run is made of: commit, what differs from it, and a digest of the package's files."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

import nemo_uecr

PACKAGE = Path(nemo_uecr.__file__).resolve().parent
#: What the difference is taken over: what decides how a run behaves.
WATCHED = ("nemo_uecr", "pyproject.toml")
GIT_SECONDS = 20


@dataclass(frozen=True)
class Source:
    """The package's code.

    Attributes:
        commit: hash of the commit, None where the package is in no git checkout.
        diff: the difference to the commit, new files included; empty when there is none.
        package_sha256: one digest over the package's Python files.
    """

    commit: str | None
    diff: bytes
    package_sha256: str

    def record(self) -> dict[str, object]:
        """As it stands in ``provenance.json``."""
        return {
            "commit": self.commit,
            "dirty": bool(self.diff),
            "diff_sha256": hashlib.sha256(self.diff).hexdigest(),
            "package_sha256": self.package_sha256,
        }


def package_source() -> Source:
    """The code of this process's package, as it lies on disk."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}:{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    root = PACKAGE.parent
    # A package that was installed into a folder of somebody's checkout is not in that checkout's history.
    tracked = _git(root, "ls-files", "--error-unmatch", f"{PACKAGE.name}/__init__.py")
    commit = None if tracked is None else _git(root, "rev-parse", "HEAD")
    if commit is None:
        return Source(None, b"", digest.hexdigest())
    return Source(commit.decode().strip(), _difference(root), digest.hexdigest())


def _difference(root: Path) -> bytes:
    changed = _git(root, "diff", "--no-ext-diff", "--no-color", "HEAD", "--", *WATCHED) or b""
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *WATCHED) or b""
    for name in filter(None, new.decode().split("\0")):
        # Exit code 1 says that the two differ, as they must.
        changed += (
            _git(root, "diff", "--no-ext-diff", "--no-color", "--no-index", "--", "/dev/null", name, codes=(1,)) or b""
        )
    return changed


def _git(root: Path, *words: str, codes: tuple[int, ...] = (0,)) -> bytes | None:
    """Output of a git command; None where git is missing or refuses."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode in codes else None
