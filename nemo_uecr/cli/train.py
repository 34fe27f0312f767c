"""Commands that train: `train`, `demo`, `smoke` and `study`."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

import nemo_uecr
from nemo_uecr.cli.common import ConfigFile, Override, is_nemo_rl, load_and_report, whole_numbers
from nemo_uecr.errors import ConfigError, InvariantError, UecrError, require_extra

if TYPE_CHECKING:
    from nemo_uecr.config.load import LoadedConfig
    from nemo_uecr.stopping import StopRequest
    from nemo_uecr.study.grid import Cell

__all__ = [
    "demo", "demo_config_path", "smoke", "study", "train", "train_cell", "train_until",
    "with_free_folder",
]  # fmt: skip

logger = logging.getLogger(__name__)


def train(config: ConfigFile, /, *overrides: Override, resume: bool = False) -> None:
    """Train a student from a configuration file.

    The run folder gets the resolved configuration, metrics, evaluations, saved batches and checkpoints.

        nemo-uecr train examples/configs/local/demo.yaml method.name=distilled_rl run.folder=runs/distilled

    Args:
        resume: Continue the run in run.folder from its newest checkpoint.
    """
    if is_nemo_rl(config, overrides):
        folder = _train_nemo_rl(config, overrides, resume=resume)
    else:
        loaded = load_and_report(config, overrides)
        with _saying_how_to_continue(loaded.config.run.folder):
            folder = _train_local(loaded, resume=resume)
    sys.stdout.write(f"run: {folder}\n")


def _train_nemo_rl(config: str, overrides: Sequence[str], *, resume: bool) -> Path:
    from nemo_uecr.config.load import load_nemo
    from nemo_uecr.config.methods import objective, unused_line
    from nemo_uecr.files import locked
    from nemo_uecr.nemo.launcher import train as launch

    loaded = load_nemo(config, overrides)
    equation, unused = objective(loaded.config), unused_line(loaded.config, loaded.origins)
    logger.info(equation)
    if unused is not None:
        logger.info(unused)
    with locked(Path(loaded.config.run.folder)):
        return launch(loaded.config, resume=resume, origins=loaded.origins, objective=equation)


def _train_local(loaded: LoadedConfig, *, resume: bool) -> Path:
    """Train with the local back end until the last step or a signal."""
    from nemo_uecr.stopping import listening

    with listening() as stop:
        return train_until(loaded, resume=resume, stop=stop)


def train_until(loaded: LoadedConfig, *, resume: bool, stop: StopRequest) -> Path:
    """Train with the local back end until the last step or the request; returns the run folder."""
    require_extra("local")
    from nemo_uecr.config.methods import objective
    from nemo_uecr.local.run import train as run
    from nemo_uecr.study.demo import resolve

    equation = objective(loaded.config)
    return run(loaded.config, resume=resume, origins=loaded.origins, objective=equation, locate=resolve, stop=stop)


@contextlib.contextmanager
def _saying_how_to_continue(folder: str) -> Iterator[None]:
    """Ctrl-C saves nothing; print the command that continues the run from its newest checkpoint."""
    try:
        yield
    except KeyboardInterrupt:
        written = os.path.join(folder, "config.yaml")
        if os.path.exists(written):
            command = shlex.join(["nemo-uecr", "train", written, "--resume"])
            sys.stderr.write(f"to continue from the newest checkpoint: {command}\n")
        raise


def demo(*overrides: Override, no_open: bool = False) -> None:
    """Prepare the demo's models and problems, train on them, and open the report.

    The first call trains a student and a larger teacher and caches them. Any key of
    examples/configs/local/demo.yaml can be changed:

        nemo-uecr demo method.name=grpo run.seed=1

    Args:
        no_open: Do not open the report in the browser.
    """
    from nemo_uecr.cli.runs import report

    loaded = load_and_report(demo_config_path(), with_free_folder(overrides))
    with _saying_how_to_continue(loaded.config.run.folder):
        folder = _train_local(loaded, resume=False)
    report(folder, open_=not no_open)


def demo_config_path() -> str:
    """The demo's configuration: that of the clone, or the one inside an installed package."""
    package = Path(nemo_uecr.__file__).resolve().parent
    places = [folder / "configs" / "local" / "demo.yaml" for folder in (package.parent / "examples", package)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ConfigError(f"no demo configuration at {' or '.join(map(str, places))}; install nemo-uecr again")
    shown = os.path.relpath(path)
    return str(path) if shown.startswith("..") else shown


def with_free_folder(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the first unused of runs/demo, runs/demo-2, ... where they name no folder."""
    if any(text.lstrip("+").startswith("run.folder=") for text in overrides):
        return list(overrides)
    folder, number = "runs/demo", 1
    while os.path.exists(folder):
        number += 1
        folder = f"runs/demo-{number}"
    return [f"run.folder={folder}", *overrides]


def smoke(
    config: ConfigFile,
    /,
    *overrides: Override,
    steps: Annotated[str, Parameter(help="Steps of each run: 1,5,10.")],
) -> None:
    """Train for a few steps with every check on, before a long run.

    Each number of steps gets a run of its own, in a new folder beside the configured one, with every batch saved. A
    run whose identities do not hold stops with an error and keeps the batch. Afterwards every batch is recomputed with
    rho = 0 and with alpha = rho = 0, which must give PUU and GRPO bit for bit.
    """
    from nemo_uecr.config.load import load_config
    from nemo_uecr.config.methods import objective
    from nemo_uecr.telemetry.run_folder import worst_residuals

    counts = whole_numbers("--steps", steps)
    if 0 in counts or len(set(counts)) < len(counts):
        raise ConfigError(f"--steps: got {steps}, expected different whole numbers above 0, such as 1,5,10")
    loaded = load_and_report(config, overrides).config
    sys.stdout.write(f"objective: {objective(loaded)}\n")
    for name, value in loaded.tolerances.model_dump().items():
        sys.stdout.write(f"tolerance {name}: {value:g}\n")
    root = os.path.join(f"{loaded.run.folder}-smoke", time.strftime("%Y%m%d-%H%M%S"))
    for count in counts:
        target = os.path.join(root, f"steps-{count:03d}")
        short = [
            f"train.steps={count}",
            f"run.folder={target}",
            "evaluation.at_start=false",
            "evaluation.benchmarks={}",
            "checkpoint.keep_best=false",
            "telemetry.save_batch_every=1",
        ]
        folder = _train_local(load_config(config, [*overrides, *short]), resume=False)
        for name, residual in worst_residuals(folder).items():
            sys.stdout.write(f"smoke {count}: {name} at most {residual:.3g}\n")
        reductions = _check_reductions(folder)
        compared = f"{reductions} reductions bit for bit" if reductions else "no teacher scores to reduce"
        sys.stdout.write(f"smoke {count}: passed, {compared}, {folder}\n")
        sys.stdout.flush()


def _check_reductions(folder: Path) -> int:
    """UECR's reductions on every saved batch of a run; returns how many were compared."""
    from nemo_uecr.core.invariants import reductions
    from nemo_uecr.data.batch_file import load_batch, scored_batch

    compared = 0
    for path in sorted((folder / "batches").glob("step-*.safetensors")):
        for condition, difference in reductions(scored_batch(load_batch(path), path)).items():
            if difference != 0.0:
                raise InvariantError(f"{path}: uecr with {condition} differs from its baseline by {difference:.3g}")
            compared += 1
    return compared


def study(
    config: Annotated[str, Parameter(help="Study file.")], /, *, budget: bool = False, tables_only: bool = False
) -> None:
    """Run a grid of methods on several students, with tables and figures.

    Prints the budget first. Run it again after an interruption: finished runs are kept, unfinished ones continue from
    their checkpoints. SIGTERM (exit code 75) and Ctrl-C (130) end its processes too.

        nemo-uecr study examples/configs/study/small.yaml

    Args:
        budget: Print the budget and stop.
        tables_only: Rebuild tables and figures from the finished runs; train nothing.
    """
    require_extra("local", "study")
    from nemo_uecr.files import locked
    from nemo_uecr.stopping import listening
    from nemo_uecr.study.grid import check_overrides
    from nemo_uecr.study.runner import forecast, run_study, summarise
    from nemo_uecr.study.schema import load_study

    loaded = load_study(config)
    if tables_only:
        with locked(Path(loaded.folder)):
            sys.stdout.write(f"summary: {summarise(loaded)}\n")
        return
    check_overrides(loaded)  # a misspelt override must not wait for its turn
    with contextlib.nullcontext() if budget else locked(Path(loaded.folder)):
        sys.stdout.write("".join(f"{line}\n" for line in forecast(loaded)))
        sys.stdout.flush()
        if budget:
            return
        with listening() as stop:
            work = functools.partial(train_cell, loaded.config)
            sys.stdout.write(f"summary: {run_study(loaded, work, stop=stop, report=logger.info)}\n")


def train_cell(config: str, cell: Cell) -> str | None:
    """Train one cell, continuing it where it was begun; returns the error that a user should read, or None."""
    from nemo_uecr.config.load import load_config

    logging.getLogger("nemo_uecr").setLevel(logging.WARNING)
    try:
        _train_local(load_config(config, cell.overrides), resume=(cell.folder / "config.yaml").is_file())
    except UecrError as error:
        return " ".join(str(error).split())
    return None
