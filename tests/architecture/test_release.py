"""What a release states in several files is one statement: version, changelog, citation, image."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from nemo_uecr import __version__
from nemo_uecr.nemo import upstream
from nemo_uecr.start.machine import IMAGE

ROOT = Path(__file__).resolve().parents[2]


def text_of(name: str) -> str:
    path = ROOT / name
    if not path.is_file():
        pytest.skip(f"{name} is not part of this tree")
    return path.read_text(encoding="utf-8")


def test_changelog_citation_and_image_label_have_it() -> None:
    changelog = text_of("CHANGELOG.md")
    newest = re.findall(r"^## (\d\S*) - (\S+)$", changelog, re.M)[0]
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert (str(citation["version"]), citation["date-released"]) == newest
    assert ".dev" in __version__ or newest[0] == __version__
    assert (".dev" in __version__) == ("\n## Unreleased\n" in changelog)
    assert f'image.version="{__version__}"' in text_of("Dockerfile")


def test_the_dockerfile_starts_from_the_image_that_the_doctor_names() -> None:
    assert re.findall(r"^FROM (\S+)$", text_of("Dockerfile"), re.M) == [IMAGE]
    workers = re.findall(r"worker=(\S+)", text_of("Dockerfile"))
    assert workers == [upstream.VLLM_WORKER_FQN, upstream.NATIVE_WORKER_FQN]


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    kept = {line.removeprefix("!") for line in text_of(".dockerignore").splitlines() if line.startswith("!")}
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", text_of("Dockerfile"), re.M) for name in line.split()}
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
