"""Commands that train: `train`, `demo` and `smoke`."""

from __future__ import annotations

import functools
import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from nemo_uecr.cli.common import ConfigFile, Override, Steps, say
from nemo_uecr.errors import InvariantError, require_extra
from nemo_uecr.stopping import StopRequest, listening

if TYPE_CHECKING:
    from nemo_uecr.config.load import Loaded

logger = logging.getLogger(__name__)

#: Enough for the demo's advice, in two seconds.
DEMO_PROBLEMS = 16


def train(config: ConfigFile, /, *overrides: Override, resume: bool = False) -> None:
    """Train a student from a configuration file, or from a recipe of NeMo-RL's with a section uecr.

    A recipe runs as by NeMo-RL's own launch script, overrides in NeMo-RL's spelling, and continues from the newest
    checkpoint in checkpointing.checkpoint_dir.

        nemo-uecr train examples/configs/local/demo.yaml method.name=distilled_rl run.folder=runs/distilled
        nemo-uecr train examples/configs/uecr_qwen3_4b.yaml uecr.teacher.model_name=models/teacher

    Args:
        resume: Continue the run in run.folder from its newest checkpoint; a recipe does so without being asked.
    """
    from nemo_uecr.config.recipes import is_recipe

    if is_recipe(config):
        from nemo_uecr.nemo.plug_in import train as train_recipe
        from nemo_uecr.start.machine import gpu_memory
        from nemo_uecr.start.recipe_form import settled_teachers

        train_recipe(config, [*overrides, *settled_teachers(config, overrides, gpu_memory)])
    else:
        say(f"run: {train_local(config, overrides, resume=resume)}")


def train_local(config: str, overrides: Sequence[str], *, resume: bool, stop: StopRequest | None = None) -> Path:
    """Train with the local back end until the last step, a signal or the request; returns the run folder.

    Ctrl-C saves nothing; the command that continues is printed, and whether there is a checkpoint to begin with.
    """
    from nemo_uecr.config.load import load_config

    loaded = load_config(config, overrides)
    _announce(config, loaded, resume)
    require_extra("local")
    from nemo_uecr.start.local_run import train as run

    work = functools.partial(run, loaded.config, resume=resume, origins=loaded.origins)
    if stop is not None:
        return work(stop=stop)
    try:
        with listening() as heard:
            return work(stop=heard)
    except KeyboardInterrupt:
        folder = Path(loaded.config.run.folder)
        if (folder / "config.yaml").exists():
            saved = sorted((folder / "checkpoints").glob("step-*"))
            command = shlex.join(["nemo-uecr", "train", str(folder / "config.yaml"), "--resume"])
            hint = f"to continue from {saved[-1].name}" if saved else "no checkpoint yet; to begin again"
            sys.stderr.write(f"{hint}: {command}\n")
        raise


def _announce(config: str, loaded: Loaded[Any], resume: bool) -> None:
    """Check that a resumed run is where its configuration says, and log the keys that its method does not use."""
    from nemo_uecr.config.methods import unused_line
    from nemo_uecr.start.folders import named_folder

    named_folder(config, loaded.config.run.folder, loaded.origins["run.folder"], resume=resume)
    if line := unused_line(loaded.config, loaded.origins):
        logger.info(line)


def demo(*overrides: Override, no_open: bool = False) -> None:
    """Prepare the demo's models and problems, train on them, and open the report.

    It ends with the advice of `nemo-uecr audit teacher` for the untrained student. The first call makes and caches the
    models. Any key of examples/configs/local/demo.yaml can be changed:

        nemo-uecr demo method.name=grpo run.seed=1

    Args:
        no_open: Do not open the report in the browser.
    """
    from nemo_uecr.cli.audit import audited_teacher
    from nemo_uecr.cli.runs import report

    folder = train_local(demo_config_path(), with_free_folder(overrides), resume=False)
    audit, _ = audited_teacher(str(folder / "config.yaml"), [], problems=DEMO_PROBLEMS, out=None)
    report(folder, open_=not no_open)
    say("", "nemo-uecr audit teacher, for the untrained student (the report has the reasons):")
    say(*(f"{name:<12}{value}" for name, value in audit.numbers["advice"].items()))


def demo_config_path() -> str:
    """The demo's configuration: that of the clone, or the one inside an installed package."""
    from nemo_uecr.config.load import SHIPPED

    path = str(SHIPPED / "local" / "demo.yaml")
    shown = os.path.relpath(path)
    return path if shown.startswith("..") else shown


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
    config: ConfigFile, /, *overrides: Override, steps: Annotated[Steps, Parameter(help="Steps of each run: 1,5,10.")]
) -> None:
    """Train for a few steps with every check on, before a long run.

    Each number of steps gets a run of its own, in a new folder beside the configured one, with every batch saved and
    recomputed with rho = 0 and with alpha = rho = 0, which must give PUU and GRPO bit for bit.
    """
    from nemo_uecr.config.load import load_config
    from nemo_uecr.config.methods import objective
    from nemo_uecr.telemetry.run_folder import worst_residuals

    loaded = load_config(config, overrides).config
    say(f"objective: {objective(loaded)}")
    say(*(f"tolerance {name}: {value:g}" for name, value in loaded.tolerances.model_dump().items()))
    root = os.path.join(f"{loaded.run.folder}-smoke", time.strftime("%Y%m%d-%H%M%S"))
    for count in sorted({*steps}):
        short = (
            f"train.steps={count}", f"run.folder={os.path.join(root, f'steps-{count:03d}')}",
            "evaluation.at_start=false", "evaluation.benchmarks={}", "checkpoint.keep_best=false",
            "telemetry.save_batch_every=1",
        )  # fmt: skip
        folder = train_local(config, [*overrides, *short], resume=False)
        say(*(f"smoke {count}: {name} at most {worst:.3g}" for name, worst in worst_residuals(folder).items()))
        say(f"smoke {count}: passed, {_check_reductions(folder)}, {folder}")


def _check_reductions(folder: Path) -> str:
    """UECR's reductions on every saved batch of a run; returns how many hold, in words."""
    from nemo_uecr.core.invariants import reductions
    from nemo_uecr.responses.replay import scored_batch
    from nemo_uecr.responses.table import read_responses

    compared = 0
    for path in sorted((folder / "batches").glob("step-*.parquet")):
        for condition, difference in reductions(scored_batch(read_responses(path))).items():
            if difference != 0.0:
                raise InvariantError(f"{path}: uecr with {condition} differs from its baseline by {difference:.3g}")
            compared += 1
    none = "no reductions: they need teacher_logp and teacher_entropy"
    return f"{compared} reductions bit for bit" if compared else none
