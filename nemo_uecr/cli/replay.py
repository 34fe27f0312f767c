"""The command `replay`, and the reading of a method's settings from `key=value` words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from nemo_uecr.cli.common import refuse_output
from nemo_uecr.errors import ConfigError, DataError

if TYPE_CHECKING:
    from nemo_uecr.config.schema import MethodConfig
    from nemo_uecr.core.records import Settings

__all__ = ["parse_settings", "replay"]

Words = Annotated[
    tuple[str, ...],
    Parameter(name="--set", help="The method's settings as `key=value`: alpha=1 rho=.5 std=sample parameters.NAME=2."),
]


def replay(
    batch: Path, /, *, check: bool = False, method: str | None = None, words: Words = (), out: Path | None = None
) -> int:
    r"""Recompute a method's advantages from a saved batch, or check those that a run saved.

    BATCH is a safetensors file with task_reward [B], group [B], mask [B, T], old_logp [B, T] and what the method reads
    of teacher_logp, teacher_entropy, initial_logp and segments [B, T]. OUT gets advantage [B, T] (0 where the mask is
    0) and the method's intermediate quantities.

        nemo-uecr replay runs/demo/batches/step-000010.safetensors --method uecr \
            --set alpha=1 rho=.5 tau_delta=1 tau_entropy=1 --out advantages.safetensors

    With `--check`, BATCH is a saved step or a run folder. Method and settings come from the file, and the advantages
    that the run saved must come out again: bit for bit on the run's own versions and kind of processor, to 1e-6
    elsewhere. Exit code 1 when one does not.

        nemo-uecr replay runs/demo --check

    Args:
        batch: Saved batch, or with `--check` a run folder.
        check: Compare with the advantages that the run saved.
        method: Method, for example uecr.
        out: File to write (safetensors).
    """
    if check:
        if method is not None or words or out is not None:
            raise ConfigError("--check takes method and settings from the saved step; drop --method, --set and --out")
        return _check(batch)
    if method is None or out is None:
        raise ConfigError("expected --method NAME and --out OUT, or --check alone; see nemo-uecr replay --help")
    _write(batch, method, words, out)
    return 0


def _write(path: Path, name: str, words: Sequence[str], out: Path) -> None:
    from safetensors.torch import save

    from nemo_uecr.config.methods import check_parameters
    from nemo_uecr.core.methods import METHODS
    from nemo_uecr.data.batch_file import load_batch, naming_file, scored_batch
    from nemo_uecr.files import replace_file

    if name not in METHODS:
        raise ConfigError(f"method {name!r} is unknown; expected one of {', '.join(METHODS)}")
    refuse_output(out, path)
    method, settings = METHODS[name], parse_settings(words)
    own = {key: parameter.default for key, parameter in method.parameters.items()}
    check_parameters(name, dict(settings.parameters))
    settings = replace(settings, parameters={**own, **settings.parameters})
    saved = load_batch(path)
    try:
        batch = scored_batch(saved, path)
        with naming_file(path):
            advantages = method.compute(batch, settings, detail=True)
    except ConfigError as error:
        raise ConfigError(f"{error} (on this command: --set key=value)") from error
    tensors = {key: tensor.contiguous() for key, tensor in advantages.named_tensors().items()}
    for key, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise DataError(f"{key} is not finite with these settings; expected finite numbers. Use moderate settings")
    replace_file(out, save(tensors, metadata={"method": name}))
    sys.stdout.write(f"{name}: {len(tensors)} tensors in {out}\n")


def parse_settings(words: Sequence[str], run: MethodConfig | None = None) -> Settings:
    """Settings of a method from ``key=value`` words; what is not given is the run's, or the configuration's default.

    Raises:
        ConfigError: an unknown key, or a value that is no number.
    """
    from nemo_uecr.config.methods import core_settings
    from nemo_uecr.config.schema import MethodConfig
    from nemo_uecr.core.records import Settings

    defaults = {name: MethodConfig.model_fields[name].default for name in ("std_floor", "opd_coef")}
    given = {**defaults, "sample_std": False, "parameters": {}} if run is None else core_settings(run)
    parameters = dict(given.pop("parameters"))
    kinds = {field.name: int if field.name in ("step", "seed") else float for field in fields(Settings)}
    for word in words:
        key, _, text = word.partition("=")
        try:
            if key == "std" and text in ("population", "sample"):
                given["sample_std"] = text == "sample"
            elif key == "sample_std" and text in ("True", "False"):
                given["sample_std"] = text == "True"
            elif key.startswith("parameters."):
                parameters[key.removeprefix("parameters.")] = float(text)
            else:
                given[key] = kinds[key](text)
        except (KeyError, ValueError):
            legal = ", ".join(sorted({*kinds, "std"} - {"parameters", "sample_std"}))
            raise ConfigError(
                f"--set {word}: expected key=value with a number, or std=population|sample; keys: {legal}, "
                "parameters.NAME"
            ) from None
    return Settings(**given, parameters=parameters)


def _check(path: Path) -> int:
    """Print one line a step; 1 when a step does not come out again, is gone or is not as the run wrote it."""
    from nemo_uecr.data.batch_file import TOLERANCE, recompute
    from nemo_uecr.local.artifacts import batch_faults

    if not path.exists():
        raise DataError(f"{path}: no such folder; expected a run folder, or a saved batch in safetensors form")
    steps = sorted((path / "batches").glob("step-*.safetensors")) if path.is_dir() else [path]
    if not steps:
        raise DataError(f"{path} has no batches/step-*.safetensors; expected a run with telemetry.save_batch_every > 0")
    listed = {Path(name).name: fault for name, fault in batch_faults(steps[0].parent.parent).items()}
    gone = sorted(set(listed) - {step.name for step in steps}) if path.is_dir() else []
    for name in gone:
        sys.stdout.write(f"{name}: missing, the run's list of files has it: NOT REPRODUCED\n")
    failed = 0
    for step in steps:
        fault = listed.get(step.name) if step.parent.name == "batches" else None
        if fault is not None:
            failed += 1
            sys.stdout.write(f"{fault.removeprefix('batches/')}, by the run's list of files: NOT REPRODUCED\n")
            continue
        found = recompute(step)
        failed += not found.holds
        word = "bit for bit" if found.bitwise else f"differs by {found.difference:.3g}"
        want = "the run's own arithmetic" if found.same_arithmetic else f"other arithmetic, {TOLERANCE:g} allowed"
        sys.stdout.write(f"{step.name}: {word} ({want}){'' if found.holds else ': NOT REPRODUCED'}\n")
    sys.stdout.write(f"{len(steps) - failed} of {len(steps) + len(gone)} saved steps reproduced\n")
    return 1 if failed or gone else 0
