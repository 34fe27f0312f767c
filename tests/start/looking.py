"""What the doctor finds with some of the checks, of a configuration of either back end."""

from __future__ import annotations

from nemo_uecr.cli.look import run_facts
from nemo_uecr.config.schema import Config
from nemo_uecr.nemo.layout import Job
from nemo_uecr.start.checks import DOCTOR, asked, examine

#: Checks by the thing that they look at, with those that must have passed before.
MODELS = ("{} model",)
TOKENIZERS = (
    "problems", "student tokenizer", "chat template", "end of turn", "prompt length", "enough prompts", "routing",
    "{} tokenizer", "{} end tokens",
)  # fmt: skip
MEMORY = ("layout", "plan", "generation length", "host memory", "disk")


def found(config: Config | Job, *names: str) -> dict[str, tuple[str, str]]:
    """Status and words of each finding."""
    run = run_facts(config, 9900)
    checks = [check for check in asked(run, DOCTOR) if check.name in names]
    return {one.check: (one.status, f"{one.message} -> {one.remedy}") for one in examine(run, checks)}
