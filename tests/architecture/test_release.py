"""What a release states in several files is one statement: version, changelog, citation, image, CI commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from nemo_uecr import __version__
from nemo_uecr.plan.machine import IMAGE

ROOT = Path(__file__).resolve().parents[2]


def text_of(name: str) -> str:
    path = ROOT / name
    if not path.is_file():
        pytest.skip(f"{name} is not part of this tree")
    return path.read_text(encoding="utf-8")


def test_the_version_stands_in_the_package_alone() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "nemo_uecr/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", __version__)


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


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    kept = {line.removeprefix("!") for line in text_of(".dockerignore").splitlines() if line.startswith("!")}
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", text_of("Dockerfile"), re.M) for name in line.split()}
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


def test_the_workflow_runs_the_commands_of_ci() -> None:
    jobs = yaml.safe_load(text_of(".github/workflows/ci.yml"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    setting_up = [command for command in commands if command.startswith("git config")]
    assert [command for command in commands if command not in setting_up] == [".ci/run", "make test-wheel"]
    assert (ROOT / ".ci" / "run").is_file()
    assert "\ntest-wheel:" in text_of("Makefile")


def test_a_wheel_brings_the_shipped_configurations() -> None:
    targets = tomllib.loads(text_of("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]
    [(source, target)] = targets["wheel"]["force-include"].items()
    assert (ROOT / source / "local" / "demo.yaml").is_file()
    assert target == "nemo_uecr/configs"
