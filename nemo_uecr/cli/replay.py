r"""Recompute a method's advantages from a saved batch.

BATCH is a safetensors file with task_reward [B], group [B], mask [B, T], old_logp [B, T] and what the method
reads of teacher_logp, teacher_entropy, initial_logp and segments [B, T]. OUT gets advantage [B, T] (0 where the
mask is 0) and, where the method has them, weight, residual, direction, confidence, centre, advantage_unified,
advantage_task, advantage_teacher, teacher_reward and advantage_opd.

  nemo-uecr replay runs/demo/batches/step-000010.safetensors --method uecr \
      --set alpha=1 rho=.5 tau_delta=1 tau_entropy=1 --out advantages.safetensors

With --check, BATCH is a saved step or a run folder. Its method and settings come from the file, and the advantages
that the run saved must come out again: bit for bit on the run's own versions and kind of processor, to 1e-6
elsewhere. A step that is not as the run's list of files says is told too. The exit code is 1 when one fails.

  nemo-uecr replay runs/demo --check
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.errors import ConfigError, DataError

if TYPE_CHECKING:
    from nemo_uecr.config.sections import MethodConfig
    from nemo_uecr.core.records import Settings

__all__ = ["add_arguments", "run"]

FLOATS = ("alpha", "rho", "tau_delta", "tau_entropy", "std_floor", "opd_coef")
INTEGERS = ("step", "seed")
STD = ("population", "sample")
PARAMETER = "parameters."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("batch", metavar="BATCH", type=Path, help="saved batch (safetensors)")
    parser.add_argument("--check", action="store_true", help="compare with the advantages that the run saved")
    parser.add_argument("--method", metavar="NAME", help="method name, e.g. uecr")
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="key=value",
        nargs="*",
        action="extend",
        default=[],
        help=f"the method's settings: {', '.join(FLOATS + INTEGERS)}, std={'|'.join(STD)}, parameters.NAME",
    )
    parser.add_argument("--out", type=Path, metavar="OUT", help="file to write (safetensors)")


def run(args: argparse.Namespace) -> int:
    """Replay."""
    if args.check:
        from nemo_uecr.cli.replay_check import check

        if args.method is not None or args.settings or args.out is not None:
            raise ConfigError("--check takes method and settings from the saved step; drop --method, --set and --out")
        return check(args.batch)
    if args.method is None or args.out is None:
        raise ConfigError("expected --method NAME and --out OUT, or --check alone; see nemo-uecr replay --help")
    return _write(args)


def _write(args: argparse.Namespace) -> int:
    from nemo_uecr.cli.json_file import refuse_input
    from nemo_uecr.config.methods import check_parameters
    from nemo_uecr.core.methods import METHODS
    from nemo_uecr.data.batch_file import load_batch, naming_file, scored_batch
    from nemo_uecr.files import replace_file

    if args.method not in METHODS:
        raise ConfigError(f"method {args.method!r} is unknown; expected one of {', '.join(METHODS)}")
    refuse_input(args.out, "--out", args.batch)
    method = METHODS[args.method]
    settings = parse_settings(args.settings)
    own = {name: parameter.default for name, parameter in method.entry.parameters.items()}
    check_parameters(method.name, dict(settings.parameters))
    settings = replace(settings, parameters={**own, **settings.parameters})
    saved = load_batch(args.batch)
    try:
        batch = scored_batch(saved, args.batch)
        with naming_file(args.batch):
            advantages = method.compute(batch, settings, detail=True)
    except ConfigError as error:
        raise ConfigError(f"{error} (on this command: --set key=value)") from error
    for name, tensor in advantages.named_tensors().items():
        if not bool(tensor.isfinite().all()):
            raise DataError(f"{name} is not finite with these settings; expected finite numbers. Use moderate settings")
    from safetensors.torch import save

    tensors = {name: tensor.contiguous() for name, tensor in advantages.named_tensors().items()}
    try:
        replace_file(args.out, save(tensors, metadata={"method": method.name}))
    except OSError as error:
        raise DataError(f"cannot write {args.out}: {error.strerror}") from error
    sys.stdout.write(f"{method.name}: {len(tensors)} tensors in {args.out}\n")
    return 0


def parse_settings(assignments: list[str]) -> Settings:
    """Settings from ``key=value`` words; what is not given takes the configuration's default where it has one."""
    from nemo_uecr.config.sections import MethodConfig
    from nemo_uecr.core.records import Settings

    given: dict[str, float | int | bool] = {
        name: MethodConfig.model_fields[name].default for name in ("std_floor", "opd_coef")
    }
    given["sample_std"] = MethodConfig.model_fields["std"].default == "sample"
    parameters: dict[str, float] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment!r} has no '='; expected key=value, e.g. alpha=1")
        if key.startswith(PARAMETER):
            parameters[key.removeprefix(PARAMETER)] = _number(key, value)
        else:
            given |= _setting(key, value)
    return Settings(**given, parameters=parameters)  # type: ignore[arg-type]


def setting_words(method: MethodConfig) -> list[str]:
    """The method section of a configuration as ``key=value`` words; keys that it leaves open are left out."""
    given = {name: getattr(method, name) for name in FLOATS}
    given |= {f"{PARAMETER}{name}": value for name, value in method.parameters.items()}
    return [*(f"{name}={value!r}" for name, value in given.items() if value is not None), f"std={method.std}"]


def _setting(key: str, value: str) -> dict[str, float | int | bool]:
    if key == "std":
        if value not in STD:
            raise ConfigError(f"--set std={value}; expected one of {', '.join(STD)}")
        return {"sample_std": value == "sample"}
    if key == "sample_std" and value in ("True", "False"):
        return {key: value == "True"}
    if key not in FLOATS + INTEGERS:
        from nemo_uecr.config.nearest import nearest_name

        legal = (*FLOATS, *INTEGERS, "std")
        raise ConfigError(f"--set has no key {key!r}; did you mean {nearest_name(key, legal)!r}?")
    return {key: _number(key, value)}


def _number(key: str, value: str) -> float | int:
    try:
        return int(value) if key in INTEGERS else float(value)
    except ValueError:
        kind = "an integer" if key in INTEGERS else "a number"
        raise ConfigError(f"--set {key}={value}; expected {kind}") from None
