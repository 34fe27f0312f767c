"""Install nemo-uecr for development into the environment that runs this, after a line on what will be downloaded.

    python tools/setup.py [--torch-index URL]

A torch outside this environment, which `--system-site-packages` shows, is kept where it fits. Python's library alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
import tomllib
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pip._vendor.packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
SECONDS = 20
GIGA = 1e9


def pip(*words: str) -> None:
    """Run pip quietly; its own message and exit code where it fails."""
    ended = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words], cwd=ROOT, check=False)
    if ended.returncode:
        sys.exit(ended.returncode)


def machines_torch() -> str | None:
    """The version of a torch outside this environment that nemo-uecr can use; None without one."""
    try:
        torch = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    inside = Path(str(torch.locate_file(""))).resolve().is_relative_to(Path(sys.prefix).resolve())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [asked] = [one for one in map(Requirement, project["dependencies"]) if one.name == "torch"]
    return torch.version if not inside and torch.version in asked.specifier else None


def constraints(torch: str | None) -> str:
    """The constraints, with the pin of torch at another version."""
    lines = CONSTRAINTS.read_text().splitlines()
    return "\n".join(f"torch=={torch}" if torch and line.startswith("torch==") else line for line in lines) + "\n"


def size(url: str) -> int:
    """Bytes of a file that pip would fetch; 0 where its server does not answer."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        path = Path(urllib.request.url2pathname(parts.path))
        return path.stat().st_size if path.is_file() else 0
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=SECONDS) as answer:
            return int(answer.headers.get("Content-Length", 0))
    except OSError:
        return 0


def outlook(wanted: list[dict[str, Any]]) -> str:
    """What pip's report announces, in one line."""
    urls = {one["metadata"]["name"]: one["download_info"]["url"] for one in wanted}
    with ThreadPoolExecutor(8) as pool:
        sizes = dict(zip(urls, pool.map(size, urls.values()), strict=True))
    cuda = sum(count for name, count in sizes.items() if name.startswith(("nvidia-", "triton", "torch", "cuda-")))
    line = f"{len(sizes)} packages, {sum(sizes.values()) / GIGA:.1f} GB to fetch, two to four times that on disk"
    if any(name.startswith("nvidia-") for name in sizes):
        line += f"; {cuda / GIGA:.1f} GB are torch's CUDA build: TORCH=cpu takes the CPU's"
    return line


def main() -> None:
    """Announce, then install."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-index", metavar="URL", help="take torch from this package index")
    url = parser.parse_args().torch_index
    kept = machines_torch()
    with tempfile.TemporaryDirectory() as folder:
        pins, report = Path(folder) / "constraints.txt", Path(folder) / "report.json"
        pins.write_text(constraints(kept))
        if url:
            [pinned] = [line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch==")]
            pip("install", "--quiet", "--index-url", url, pinned)
        pip("install", "--quiet", "-c", str(pins), "-e", ".[dev]", "--dry-run", "--report", str(report))
        wanted = [one for one in json.loads(report.read_text())["install"] if "dir_info" not in one["download_info"]]
        sys.stdout.write(f"setup: {outlook(wanted)}{f'; torch {kept} of the machine is kept' if kept else ''}\n")
        sys.stdout.flush()
        found = Path(folder) / "found.txt"  # pip has just resolved them, which takes as long as installing them
        names = [(one["metadata"]["name"], one["metadata"]["version"]) for one in wanted]
        found.write_text("".join(f"{name}=={version}\n" for name, version in names))
        # Most modules are never imported, and compiling all of them takes more than a minute.
        pip("install", "--quiet", "--no-compile", "--no-deps", "-r", str(found), "-e", ".")


if __name__ == "__main__":
    main()
