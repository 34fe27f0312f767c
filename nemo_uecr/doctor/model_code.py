"""Model folders that bring Python code: refused here or, by a run inside NeMo-RL, executed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.data.models import load_pretrained, refuse_kernels
from nemo_uecr.doctor.findings import Finding, fail
from nemo_uecr.errors import DataError
from nemo_uecr.files import read_object

if TYPE_CHECKING:
    from nemo_uecr.doctor.subject import Subject

__all__ = ["code_findings"]

FILES = ("config.json", "tokenizer_config.json")


def code_findings(subject: Subject) -> list[Finding]:
    """Of each folder that names code of its own, why it cannot be used; what its files say otherwise is told apart."""
    findings = []
    for role, name in (("student", subject.student), ("teacher", subject.teacher)):
        fault = None if name is None else _fault(Path(name).expanduser(), nemo=subject.backend == "nemo_rl")
        if fault is not None:
            findings.append(
                fail(f"{role} code", fault, f"give {role}.model_name a model that needs no code of its own")
            )
    return findings


def _fault(folder: Path, *, nemo: bool) -> str | None:
    named = [file for file in FILES if (folder / file).is_file() and "auto_map" in read_object(folder / file)]
    if nemo and named:
        return f"{folder / named[0]} names code of its own (auto_map), which NeMo-RL would run"
    try:
        refuse_kernels(str(folder))
        if "config.json" not in named:
            return None  # a tokenizer's code is met where the tokenizer is loaded
        from transformers import AutoConfig

        load_pretrained(AutoConfig, str(folder), local_files_only=True)
    except DataError as error:
        return str(error)
    return None
